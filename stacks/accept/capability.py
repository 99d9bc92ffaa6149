"""The entry of accept: everything that the core knows of this folder."""

from busbar.capability import Capability

CAPABILITY = Capability(
    name="accept",
    help="Accept a whole cluster: a dated, signed document that can be judged again.",
    commands="stacks.accept.package.commands",
)
