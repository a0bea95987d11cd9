"""Files in gs:// and s3:// buckets: local copies for reading, and workdirs that are mirrored to a bucket."""
