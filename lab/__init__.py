"""The lab: machines that boot here, so that busbar's whole bring-up runs for real. The product never imports it."""
