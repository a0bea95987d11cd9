"""Files in buckets, gs:// and s3://: copied to the local disk to be read, and a workdir that is mirrored there."""
