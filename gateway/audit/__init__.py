"""The record of what was decided: who called what, what was refused, and what administrators changed.

record         takes what happened, from the hot path
refusals       which refusals are entries, and which are only counted
pending        lines that wait; a task hands them on
batch          those of them that a thread writes together
call           what a call tells of itself
lines          what waits to be recorded, and the JSON that it becomes
chain          each line: its number, and the digest of the line before; the head, which says where the record ends
writing        appends lines under a lock that all processes share, begins new files, deletes old ones
reading        finds lines, the latest first
verification   says where lines are missing, altered, in another order, or cut off
"""
