"""What was approved of servers, at work: the lock file on disk, and every listing compared with it.

lock_file       where it is, reading and writing it
listing_lock    reviews each listing, and tells of changes once
flapping        which items of a server differ at each start
rows            the changes as administrators see them
"""
