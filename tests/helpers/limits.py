"""How long tests wait for what should come: a limit ends what hangs, and nothing else.

A busy machine may take many times as long as an idle one, so that no test depends on
the speed of either.
"""

HANG = 600.0  # seconds after which a process, thread or message counts as hung
