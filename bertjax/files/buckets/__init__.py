"""Objects in buckets, gs:// and s3://: kept on the local disk, and a workdir that is published there."""
