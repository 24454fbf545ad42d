"""A bank kept by a group of replicas: any of them may be killed at any moment (DESIGN §7).

The whole of it in five commands, all but the first in a terminal of its own::

    curp init --log "sqlite:////tmp/bank.log?group=bank"
    python -m curp.witness --listen 127.0.0.1:7100
    python -m examples.replicated_bank --listen 127.0.0.1:7001 \\
        --log "sqlite:////tmp/bank.log?group=bank" --witness 127.0.0.1:7100
    python -m examples.replicated_bank --listen 127.0.0.1:7002 \\
        --log "sqlite:////tmp/bank.log?group=bank" --witness 127.0.0.1:7100
    python -m examples.replicated_bank --listen 127.0.0.1:7003 \\
        --log "sqlite:////tmp/bank.log?group=bank" --witness 127.0.0.1:7100

``python -m examples.replicated_bank.demo`` runs all that by itself, and kills leaders: ``demo``,
with the callers of ``load``. The service is ``bank``.
"""
