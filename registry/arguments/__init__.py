"""From the arguments that a caller sent to the arguments that are forwarded.

coercion           Read a value as its schema means it: JSON text, other spellings of names, wrapper objects.
diagnosis          Turn validation errors into a few problems that a caller can act on, without any argument value.
problems           The problems of one call, as data and as text that a model can act on.
example_call       Build example arguments from a schema and the arguments that were sent.
invoke_tool        Resolve the tool and the arguments of an `invoke_tool` call.
prepare            Prepare the arguments of a call: repair them, add defaults, and validate the result.
repair             Repair an argument object as its schema directs, and report the repairs.
validation_repair  Repair an argument object where a validation error has exactly one fix.
"""
