"""Orders delivered to services, while everything is killed: ``make demo-deliver``.

- ``shop``: the order service: an order, its event and the answer are one transaction.
- ``services``: inventory, billing and mail, which are called with the events; ``naive`` ones too.
- ``player``: the process that calls them; ``naive``: a dispatcher as most write it.
- ``audit``: what the services did, compared with what was ordered.
- ``python -m examples.delivered_orders`` runs it all.
"""
