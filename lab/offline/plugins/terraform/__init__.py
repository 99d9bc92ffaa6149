"""The plugin `terraform-provider`: Pulumi's bridge to Terraform providers, with one of them from a table."""
