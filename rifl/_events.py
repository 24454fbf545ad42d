"""The events of servers, their stores and clients: what each means, and what to do."""

from __future__ import annotations

from _rifl_ground.events import Event

# fmt: off
EVENTS = {
    "rifl.server": (
        Event("handler_raised", "error", "method rpc_id exc_info",
              "A handler raised an exception that it did not declare. Its call is answered "
              "UNKNOWN, for good.",
              "Correct the handler. Look at the data of this call.", "today"),
        Event("batched_handlers_raised", "error", "method rpc_id exc_info raised",
              "Handlers of a batch raised what they did not declare. This is the first of `raised` "
              "exceptions.",
              "Correct the handler. Look at the data of these calls.", "today"),
        Event("handler_blocks_loop", "error", "method rpc_id at seconds",
              "A coroutine handler that a player calls has blocked its event loop at this line for "
              "5 s or more. The server answers nothing meanwhile. It looks twenty times a term.",
              "Call what blocks in a thread.", "now"),
        Event("local_call_raised", "error", "method rpc_id exc_info",
              "A handler that a player called raised: the delivery failed, and is retried. "
              "`rpc_id` is `0/`, partition and place in hexadecimal.",
              "If it repeats, correct the handler: docs/reference/targets.md.", "today"),
        Event("running_on_raised", "error", "exc_info",
              "The handler of a response stream raised after its caller had left.",
              "Correct the handler.", "today"),
        Event("refused", "debug", "method reason rpc_id attempt error",
              "The server refused a call."),
        Event("refused_a_mistake", "warning", "method reason rpc_id attempt error left_out",
              "A refusal that shows a bug in a caller or a deployment. Each reason is written at "
              "most once in ten seconds; `left_out` more were not.",
              "Look the reason up: docs/reference/api/errors.md#reasons.", "today"),
        Event("overloaded", "warning", "method error left_out",
              "The server refused a call as OVERLOADED; `error` says why. Written at most once in "
              "ten seconds; `left_out` more were not.",
              "Add servers, or make handlers quicker. If the server has room, raise the bound: "
              "docs/reference/policies.md#overload.", "today"),
        Event("handler_cancelled", "warning", "method rpc_id left_out",
              "A coroutine handler was cancelled, as no caller waited for it any more. Written at "
              "most once in ten seconds; `left_out` more were not.",
              "If it lasts, callers give up before handlers end: add servers, or allow more time.",
              "today"),
        Event("calls_without_message", "warning", "calls source",
              "The server ended so many calls that opened and sent no message, the last one from "
              "this address. Written at most once a minute.",
              "If it repeats, find out who that is, and block the address.", "today"),
        Event("refused_for_a_cause", "warning", "reason method rpc_id attempt error cause left_out",
              "A refusal of which the caller is told less: `error` and `cause` may name the "
              "store's host, user or files. Each reason is written at most once in ten seconds; "
              "`left_out` more were not. Also by `lease_server`, `sharedlog`, `sharedlog.target`.",
              "Remove the cause: as a rule, bring the store back.", "now"),
        Event("options_not_taken", "error", "methods hint",
              "A service whose proto declares policies was added without them: its methods are not "
              "deduplicated.",
              "Do as `hint` says.", "now"),
        Event("refusing_new_calls", "info, warning", "reason error",
              "The server refuses new calls: it drains (info), or the store cannot be written "
              "(warning).",
              "If a warning: see the event of `rifl.store` before it.", "now"),
        Event("taking_new_calls", "info", "", "The server no longer refuses new calls."),
        Event("draining", "info", "grace_s",
              "`serve_until_signal` got the signal, and waits this long for handlers."),
        Event("stopped", "info", "calls_left", "`serve_until_signal` returns."),
        Event("ended_with_calls_running", "warning", "calls status",
              "`serve_until_signal` ended the process although calls ran. For them it is a crash.",
              "Give a longer `grace`.", "today"),
        Event("closed_with_calls_running", "warning", "calls hint",
              "`close` returned while handlers run; the store stays open for them.",
              "On an event loop use `aclose`.", "today"),
        Event("let_go", "info", "", "The last of those handlers has ended; the store is closed."),
        Event("kept_until_exit", "info", "",
              "A handler was cancelled while the server stopped, and its thread may run on: the "
              "store is held until the process ends."),
        Event("not_let_go", "error", "exc_info",
              "The store could not be closed after the last handler: it is held until the process "
              "ends.",
              "End the process.", "now"),
        Event("clients_ended", "info", "clients some",
              "This many leases and sessions ended, and their records with them. `some`: ids (not "
              "over shared stores or in groups). Over shared stores `lease_server` writes it, in "
              "groups `curp.replica`."),
        Event("sweep_failed", "error", "exc_info",
              "The server could not remove ended clients. It retries.",
              "If it repeats, look at the store.", "today"),
        Event("observer_failed", "error", "method error",
              "An observer, or the `told` of a schedule or a relay, raised; nothing else changes. "
              "Written once for each method, also by `rifl.client`, `curp.replica`, `sharedlog`.",
              "Correct the observer.", "today"),
    ),
    # "Shared stores" are Redis, PostgreSQL, and MariaDB or MySQL.
    "rifl.store": (
        Event("taken_over", "info", "database incarnation",
              "SQLite: this process owns a file that had another owner."),
        Event("outcomes_unknown", "warning", "calls database some",
              "SQLite, at start: this many `plain` calls ran when the last owner crashed.",
              "`rifl unknown list URL`, then `settle`: "
              "docs/how-to/operations.md#calls-whose-outcome-is-unknown.", "today"),
        Event("call_taken_over", "warning", "rpc_id method owner",
              "Shared stores: this replica decides a dead replica's call. It runs again "
              "(`idempotent`, `atomic`), or its outcome is unknown (`plain`).",
              "If it is `plain`: `rifl unknown list URL`, then `settle`.", "today"),
        Event("method_claims", "info", "method reason",
              "PostgreSQL: an `atomic` method's transactions are not READ COMMITTED. From now on "
              "its calls are claimed before they run: "
              "docs/explanation/guarantees.md#first-attempts."),
        Event("late_finisher", "warning", "rpc_id method",
              "Shared stores: a handler ended after another replica had taken its call over. The "
              "answer that stands is kept.",
              "Find out what suspends this replica for longer than others wait.", "today"),
        Event("replica_dead", "warning", "owner",
              "Shared stores: a replica's heartbeats stopped; others take its calls over.",
              "Find out why it ended, and start it again.", "today"),
        Event("record_not_kept", "error", "method exc_info",
              "`seal` raised: the call ran, and is answered OUTCOME_UNKNOWN.",
              "Correct the hook.", "now"),
        Event("store_unreachable", "error", "error",
              "Shared stores: a heartbeat failed. The server refuses new calls until one succeeds.",
              "Bring the store back; look at the network.", "now"),
        Event("store_became_weak", "error", "error",
              "Shared stores: the store's settings may now lose acknowledged records. The server "
              "refuses new calls until they are right.",
              "Correct the settings: docs/reference/stores.md.", "now"),
        Event("store_commit_failed", "error", "error",
              "SQLite: a commit failed. The server refuses new calls while it retries.",
              "Make room on the disk.", "now"),
        Event("store_recovered", "info", "", "The store is written again."),
        Event("store_stopped", "critical", "error",
              "This process no longer serves from the store: the disk's state is not known, or "
              "another process owns it.",
              "Look at the disk, then start a new process.", "now"),
        Event("store_went_backwards", "critical", "error",
              "Shared stores: the store lacks what it acknowledged. Every server stops.",
              "Find out which calls are lost, then `rifl accept-loss URL`: "
              "docs/how-to/operations.md#after-a-loss.", "now"),
        Event("store_sealed", "critical", "store reason",
              "PostgreSQL, MariaDB: such a loss is noted in the store, so that no server uses it.",
              "As for `store_went_backwards`.", "now"),
        Event("store_not_sealed", "debug", "error", "PostgreSQL, MariaDB: not yet. It retries."),
        Event("store_may_have_lost", "critical", "store reason",
              "PostgreSQL, MariaDB with `?durability=warn`: a failover or restore that commits did "
              "not wait for. The store is used all the same.",
              "Find out which calls are lost: docs/how-to/operations.md#after-a-loss.", "now"),
        Event("store_failed_over", "warning", "store was now",
              "PostgreSQL: another server serves, and has every commit.",
              "Give it a standby again.", "today"),
        Event("store_not_durable", "warning", "store setting cost",
              "At start, with `?durability=warn`: a weak setting, and what it may cost.",
              "Correct the setting: docs/reference/stores.md.", "today"),
        Event("store_setting_overridden", "warning", "store setting",
              "PostgreSQL: `synchronous_commit` is weak, and set for rifl's commits.",
              until="no need"),
        Event("store_not_closed", "warning", "file error",
              "SQLite: the file could not be marked as closed. The next start treats that as a "
              "crash.",
              "Look at the disk.", "today"),
        Event("store_rollback_failed", "warning", "error",
              "SQLite: a ROLLBACK failed after a commit had failed.",
              "As for `store_commit_failed`.", "now"),
        Event("checkpoint_failed", "warning", "error",
              "SQLite: the `-wal` was not brought into the file. Nothing is lost.",
              "Make room on the disk.", "today"),
        Event("note_illegible", "warning", "file",
              "SQLite: the note beside the store cannot be read. The file is opened without it.",
              "Find out who wrote to it: docs/reference/sqlite.md.", "today"),
        Event("shared_transaction_lost", "error", "error",
              "SQLite: a handler's statement rolled the shared transaction back. Its calls run "
              "again when they are retried.",
              "Correct the handler: docs/reference/transactions.md.", "today"),
        Event("shared_commit_failed", "error", "error calls",
              "SQLite: the commit of this many `atomic` calls failed.",
              "Make room on the disk.", "now"),
        Event("entry_refused", "critical", "row error",
              "SQLite: a record broke a constraint; only its call fails.", "Report it.", "today"),
        Event("entry_not_settled", "critical", "row error",
              "SQLite: a durable record's call could not be told.", "Report it.", "today"),
        Event("invariant_violated", "critical", "error",
              "A rule of the protocol is broken. The server refuses new calls.",
              "Start the process again, and report it.", "now"),
        Event("listener_lost", "debug", "error",
              "Shared stores: the connection that wakes waiters broke; it is made again."),
        Event("not_watched", "debug", "error",
              "MariaDB: it could not be asked whether a call runs elsewhere; it is asked again."),
        Event("holder_not_ended", "debug", "error",
              "MariaDB: the session of a handler that holds a call's row could not be killed. The "
              "call stays IN_PROGRESS."),
        Event("keys_not_expired", "debug", "error",
              "Shared stores: keys past their retention stay until the next round."),
        Event("still_pending", "debug", "error",
              "Shared stores: a record could not be written yet; it is retried."),
        Event("left_unsaid", "debug", "error",
              "Shared stores: a replica that stops could not say so; others see it by its "
              "heartbeats."),
        Event("not_counted", "debug", "error",
              "Shared stores: clients could not be counted for the metrics."),
    ),
    # Of stores, and of logs.
    "rifl.sqlite": (
        Event("wal_not_emptied", "warning", "file bytes",
              "A connection that reads keeps the `-wal` from being emptied.",
              "End its transaction: docs/reference/sqlite.md.", "today"),
        Event("wal_too_long", "error", "file bytes",
              "A reader keeps the `-wal` from being emptied: new calls, or appends, are refused.",
              "End the reader's transaction: docs/reference/sqlite.md.", "now"),
        Event("wal_emptied", "info", "file", "The `-wal` is empty again."),
    ),
    # Of all services, and of commands that change a store or a log.
    "rifl.audit": (
        Event("caller_refused", "warning", "kind reason address times",
              "A caller was not let in: its `session_secret`, `client_token`, `group_token`, "
              "`log_token`, `target_token` or `certificate` is `missing`, `wrong`, `unnamed` or "
              "`unlisted`; its `address` is not of this machine; or it lacks a `right`, which "
              "`reason` names. Of an address the first, tenth, hundredth... in ten minutes are "
              "written: `times`. An IPv6 address is its /64 network. Beyond 1,000 addresses, "
              "further ones are `others`.",
              "Find out who that is: correct the caller, or block the address.", "today"),
        Event("operator_acted", "warning", "caller verb object outcome error",
              "Who changed what: `caller` is a token's name, the names in a certificate, an "
              "address, or the user of this process. Also what a player removes from a log. "
              "`outcome`: `done`; `failed`: nothing was done; `unknown`; `refused`, which is "
              "written as often as `caller_refused`.",
              until="no need"),
    ),
    # Of all that keep files, and of the commands that listen.
    "rifl.files": (
        Event("file_open_to_all", "warning", "file rights hint",
              "Every user of the machine may read, or write, a database that was there before. "
              "Written once.",
              "`chmod o-rwx` it, and the files beside it.", "now"),
    ),
    "rifl.tls": (
        Event("certificate_read", "info", "file",
              "SIGHUP: new connections meet what the files hold now."),
        Event("certificate_not_read", "error", "error",
              "SIGHUP: the certificate, its key or the authorities cannot be used; the server goes "
              "on with the ones before.",
              "Correct the files, and send SIGHUP again.", "today"),
    ),
    "rifl.client": (
        Event("client_id_granted", "info", "client_id term_s",
              "The channel has an id, and renews it."),
        Event("client_id_lost", "info", "client_id reason",
              "The channel gave its id up, and asks for another."),
        Event("lease_lost_with_calls_outstanding", "warning", "client_id outstanding",
              "The lease ended while this many calls had no answer: their outcome is unknown.",
              "Look at their data: docs/explanation/guarantees.md.", "today"),
        Event("lease_server_not_reached", "warning", "code details",
              "No id can be had: calls wait. Written once until one can.",
              "Look at the server and the network.", "now"),
        Event("another_store", "warning", "hint client_id",
              "Two stores are behind one address.",
              "Correct the deployment: "
              "docs/how-to/operations.md#two-stores-behind-one-address.", "now"),
        Event("target_changed", "info", "target failed reason",
              "Calls now go to another target: `failed` failed for `reason`, or another one leads "
              "(`leads`)."),
        Event("targets_in_turn", "info", "targets reason",
              "These are known to be over one store: calls go to each in turn. None: to one. "
              "`reason`: why one was left out, which is tried again; empty where one was added."),
        Event("retries_held_back", "warning", "target method",
              "The budget for retries there is empty: they wait, but for one a second. Written "
              "once until it is full.",
              "Look why calls fail there: the server is overloaded, as a rule.", "now"),
        Event("hedges_held_back", "info", "target method",
              "Half of the budget there is used up: hedges wait. Written once until it is full."),
        Event("connection_replaced", "warning", "target",
              "The connection there answered nothing, and a new one did: a middle box forgot it.",
              "Change its timeout: "
              "docs/how-to/deploying.md#idle-connections-that-are-forgotten.", "today"),
        Event("path_not_installed", "warning", "path",
              "The server is a group's, and `curp` is not installed here: calls take longer.",
              "Install the package.", "today"),
        Event("path_failed", "error", "path exc_info",
              "The server is a group's, and the `curp` that is installed here raised.",
              "Install the release that rifl has.", "today"),
        Event("callback_raised", "error", "exc_info", "A callback of a future raised.",
              "Correct the callback.", "today"),
        Event("on_lease_lost_raised", "error", "client_id exc_info",
              "The application's `on_lease_lost` raised.", "Correct it.", "today"),
        Event("timer_raised", "error", "exc_info",
              "A timer of the channel raised; the others go on.", "Report it.", "today"),
    ),
}
