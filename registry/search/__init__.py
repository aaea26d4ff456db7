"""Find tools by words and by similarity.

`index` ranks tools with BM25 over weighted fields. `terms` and `stemming` turn text into terms; `synonyms` is a table
of words, read by `thesaurus`, and `neighbours` reads one that a model of the language derived. `similarity` compares
a query with whole tools by `word_vectors`, a table that was trained on requests; where a model of sentences is
installed, it reads each tool's `embedding_text`. `fusion` combines the rankings.
"""
