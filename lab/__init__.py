"""The lab: hosts that boot on this machine, for real bring-ups. The product never imports it."""
