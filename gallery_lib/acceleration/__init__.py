"""`accelerate(model, loader, optimizer, scheduler, config)`: the whole backend in one call.

`one_call` does it, from the rooms below; `arguments` sorts what it is given. `techniques(model)` returns what was done.
"""

from gallery_lib.acceleration.one_call import accelerate, techniques

__all__ = ["accelerate", "techniques"]
