"""The catalog as one profile shows it.

`profile` says which servers and tools are shown, how many and in which dialect. `view` is the result: `descriptions`
adds configured text to each definition, and `disclosure` plans which are listed, within a budget that is measured with
`tokens`. `narrowing` takes from the catalog what one caller may see.
"""
