"""Search for tools by meaning, with embeddings; off by default.

tool_vectors    Compute and store vectors of tools in the background, with a sentence model.
"""
