"""The catalog as one profile shows it.

`profile` says which servers and tools, how many and in which dialect; `descriptions` adds configured text;
`disclosure` plans what is listed within a budget measured by `tokens`; `view` puts it together.
"""
