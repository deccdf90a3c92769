"""Jobs: a fuse in units, done by whoever comes, and put in place when all are done."""
