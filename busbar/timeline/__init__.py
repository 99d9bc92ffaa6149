"""When each step of an update began and ended, and which chain of steps decided how long it took."""

from busbar.timeline.picture import picture
from busbar.timeline.steps import Step, Timeline, Wait

__all__ = ["Step", "Timeline", "Wait", "picture"]
