"""What was approved of a server, and how what it lists now differs from that.

digests          one value, one digest: of the text that a model reads, of inputs, outputs and hints
schema_changes   whether a changed schema takes less than before, or more
surface          what of a server is locked: its identity, instructions, tools, prompts and templates
changes          how two surfaces differ, by class
difference       one change as lines for people
lockfile         what is approved, as a text that is reviewed in git
review           a listing compared with it: what is shown as it is, as approved, or not at all
"""
