"""Find tools by words and by similarity.

index  Rank tools for a query by words (BM25 over weighted fields), by vector similarity, and by both.
terms  Convert text to search terms: split identifiers, strip accents, stem words, add synonyms.
"""
