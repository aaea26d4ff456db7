"""The arguments of every command, which are there before anything that a command needs is imported.

declaring           how a command is declared
options             options that several have, and how values are read
serve, inspect, operate, lock, hosts
                    the commands by what they are for
"""
