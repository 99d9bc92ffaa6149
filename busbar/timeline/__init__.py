"""When each step of an update began and ended, and which chain of steps decided how long it took."""

from busbar.timeline.picture import picture
from busbar.timeline.steps import FILE, Step, Timeline, Wait

__all__ = ["FILE", "Step", "Timeline", "Wait", "picture"]
