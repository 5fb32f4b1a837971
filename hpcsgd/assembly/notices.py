"""What a run says before it begins, where settings do nothing here."""

import logging

from hpcsgd.agreement.kinds import takes_gradients
from hpcsgd.assembly.unread import unread
from hpcsgd.config import RunConfig

log = logging.getLogger(__name__)
# Agreements that do something on one replica, too, and what is no agreement.
ALONE = ("auto", "none", "growing", "offload", "infinity", "anybatch")


def warn_of_one_replica(config: RunConfig, replicas: int, ranks: int) -> None:
    """Methods are about replicas; ranks that are members of one agree on nothing."""
    asked = config.agreement
    if replicas > 1 or ranks == 1 or asked.kind in ALONE:
        return
    name = f"--method {asked.method}" if asked.method else f"--agreement {asked.kind}"
    log.warning(
        "%s is for replicas, and all %d ranks are members of one, so that nothing is"
        " agreed on; use --grid %dx1 for a replica on each rank",
        *(name, ranks, ranks),
        extra={"on_all_ranks": True},
    )


def warn_of_unread(config: RunConfig) -> None:
    """A setting of another method is a misunderstanding, or left over from one."""
    asked = config.agreement
    sends = takes_gradients(asked.kind)
    for name, value in unread(config).items():
        of_codec = sends and name.startswith("codec.")
        log.warning(
            "%s = %r does nothing: %s does not read it; leave it out",
            *(name, value),
            f"codec {asked.codec}" if of_codec else f"agreement {asked.kind}",
            extra={"on_all_ranks": True},
        )
