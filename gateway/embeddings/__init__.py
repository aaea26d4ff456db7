"""Search by meaning: a sentence model that ships in packages, and the vectors that it made; off by default."""
