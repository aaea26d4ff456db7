"""Operating system services for all other packages: files, secrets, signals, tasks, memory and confinement.

files    Write files atomically and privately, and split byte streams into lines.
secrets  Find the secret values in a configuration and remove them from texts.
confine  Restrict the rights of its own process, then execute a program. The gateway runs this file as a program.
memory   Tune garbage collection and the memory allocator for a long-lived process.
tasks    Run detached tasks and work in threads, and receive signals as a stream.
extras   Find the command that installs an optional extra of this package.
"""
