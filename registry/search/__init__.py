"""Find tools by words and by similarity.

index       Rank tools for a query: BM25 over weighted fields, with stems and synonyms.
similarity  Rank tools by vector similarity, and combine that ranking with the ranking by words.
terms       Convert text to search terms: split identifiers, strip accents, stem words, add synonyms.
"""
