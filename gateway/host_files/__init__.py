"""The files of hosts: their servers come into ours, and the gateway goes into theirs.

hosts       the nine hosts: where their files are, in which form, and how each writes an entry
text        the text of a file with entries put in and taken out; all of the rest stays
entries     an entry of a host as we write it, with references in place of secrets
installing  the gateway as an entry of a host: what it replaces, and its way out
changes     a change of a file: its difference, a backup, and taking it back
"""
