"""The lab: machines that boot here, so that the bring-up runs for real. The product never imports it."""
