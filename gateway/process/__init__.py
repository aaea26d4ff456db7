"""Services that every long-lived process needs: files, secrets, signals, tasks and memory.

files    Write files atomically and privately, and split byte streams into lines.
secrets  Find the secret values in a configuration and remove them from texts.
confine  Confine a process, then execute a program (run as a program itself).
memory   Tune garbage collection and the allocator for a long-lived process.
tasks    Run detached tasks, movable deadlines and work in threads, and receive signals as a stream.
extras   Find the command that installs an optional part of this package.
"""
