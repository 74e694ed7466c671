"""A training script of the reader's, unmodified, plain and accelerated in turns: `gallery try`.

    attach.py        is imported by the script's Python at its start, and waits for `import torch`
    probe.py         runs inside the script: finds its steps, counts them, waits for turns
    script_state.py  what the probe asks torch about the script
    run.py           one process of the script, or several, seen from outside
    parity.py        whether two runs of the script are the same training
    trial.py         the order of it all, and the result
    findings.py      what holds the script back
    pace.py          how fast the machine is meanwhile; a trial beside an earlier one
    lines.py         the change that makes the script the accelerated one
    scratch.py       the folder in which the script runs, so that it writes over nothing

Steps are found by what torch tells: an optimizer's step, a backward pass, a loader that is begun.
The script's source is neither read nor changed.
"""
