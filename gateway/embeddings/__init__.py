"""Search by embeddings, off by default.

`model` runs a sentence model that is installed as a package, into which `adapter` puts what was learned of tools and
requests. `tool_vectors` keeps a vector for each tool of the catalog, `vector_store` keeps them on disk.
"""
