"""Find tools by words, and combine that with embeddings where they are installed.

`index` ranks with BM25 over weighted fields; `terms` and `stemming` turn text into terms; `synonyms` is data, read by
`thesaurus`; `fusion` combines a ranking by words with nearness of embeddings.
"""
