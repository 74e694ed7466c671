"""`gallery doctor`: which techniques apply on this machine, and where a step's time went.

`text` reads the folders and puts the report together. `techniques` is about the machine,
`step_phases` and `advice` about one run, `scaling` about a run on several processes beside one.
All that is said of a run comes from its `results.json`, but
for `roofline_text` and `roofline_figure`: they show what `measure.profile.roofline` has measured.
"""
