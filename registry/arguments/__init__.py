"""Turn the arguments that a caller sent into the arguments that are forwarded to the upstream.

coercion      Read values that are not written as a schema demands: JSON texts, misspelled names, wrapper objects.
diagnosis     Turn validation errors into a few problems that a caller can act on, without any argument value.
problems      Return the problems of one call, as data and as text that a model can act on.
example_call  Build example arguments from a schema and the arguments that were sent.
invoke_tool   Resolve the tool and the arguments of an `invoke_tool` call.
prepare       Prepare the arguments of a call: repair them, add defaults, and validate the result.
repair        Repair an argument object as its schema and its validation errors direct, and report the repairs.
"""
