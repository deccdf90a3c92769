"""Benchmarks that airspeed velocity runs for each commit.

``time_*`` is what two commits are compared by. ``track_*`` says the same in GFLOP/s or GB/s, for people. What is
measured must also run on older commits: import ltx2c inside ``setup``, and raise ``NotImplementedError`` where a
commit lacks something, which asv takes as "not there".
"""
