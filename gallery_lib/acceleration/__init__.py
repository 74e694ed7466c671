"""The whole backend in one call: `accelerate(model, loader, optimizer, scheduler, config)`.

`one_call` does it, from the other packages of the backend. `arguments` sorts the arguments of the
call and refuses what cannot be accelerated; `precision` says what autocast does to the model.
`techniques(model)` returns what was done.
"""

from gallery_lib.acceleration.one_call import accelerate, techniques

__all__ = ["accelerate", "techniques"]
