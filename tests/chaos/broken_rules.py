"""The table of rules that are broken on purpose: where each stands, and in which deployment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from _rifl_ground.refusals import Outcome
from curp._core.leader import Speed
from curp._replica import (
    leading,
    snapshot_taker,
    witness_list_keeper,
)
from curp._replica.lease_storage import LogLeaseStorage
from curp.log import _checks as checks
from lease_server._storage import MemoryLeaseStorage
from rifl._stores.sqlite import restored
from rifl._stores.sqlite.journal_entries import JournalEntry
from rifl._stores.sqlite.lease_storage import SqliteLeaseStorage
from rifl.core._shared.errors import NotRecorded
from tests.chaos import call_mutations as calls
from tests.chaos import client_mutations as clients
from tests.chaos import group_log_mutations as group_logs
from tests.chaos import group_mutations as groups
from tests.chaos import stream_mutations as streams
from tests.chaos import unclaimed_mutations as unclaimed
from tests.chaos.broken import replaced, rule_without

__all__ = ["RULES", "Mutation"]


class Mutation(NamedTuple):
    """A broken rule: what it is, where it stands, and the first seed that shows it."""

    name: str
    rule: str
    kind: str
    broken: Callable[[], AbstractContextManager[Any]]
    seed: int = 0


RULES = (
    Mutation("id redrawn on retry", "§3: every attempt, one identity", "memory", calls.seq_redrawn),
    Mutation("answer not kept", "§4.2: completed, replayed", "memory", calls.answer_not_kept),
    Mutation("running call not known", "§4.2: duplicates wait", "memory", calls.running_not_known),
    Mutation("acknowledged call looks new", "§4.3: STALE", "memory", calls.acknowledged_looks_new),
    Mutation("dead client served", "§4.5: known and alive", "memory", clients.everybody_alive),
    Mutation("ids without incarnation", "§5: memory ids", "memory", clients.no_incarnation),
    Mutation(
        "client removed while its call runs",
        "§4: removing",
        "memory",
        clients.removed_while_running,
    ),
    Mutation(
        "forwarded labels believed",
        "§3: of one identity",
        "memory",
        calls.forwarded_labels_believed,
    ),
    Mutation(
        "a refused call may come late", "§3: will not", "sqlite", calls.refused_means_will_not
    ),
    Mutation("no intent", "§4.6: intent durable first", "sqlite", calls.no_intent),
    Mutation("intents forgotten", "§4: intent of the dead", "sqlite", calls.intents_forgotten),
    Mutation("record after reply", "§4.7: durable, then told", "sqlite", calls.record_after_reply),
    Mutation(
        "granted client unknown",
        "§5: before its id is told",
        "sqlite",
        clients.granted_unregistered(SqliteLeaseStorage),
    ),
    Mutation(
        "id taken of another store",
        "§3: two stores, one address",
        "memory",
        clients.id_taken_of_another_store,
    ),
    Mutation(
        "restored store goes on as it was",
        "§5: a new incarnation",
        "sqlite",
        replaced(restored, "begin_anew", lambda connection, store_id: None),
    ),
    Mutation(
        "restored store grants ids again",
        "§3, §5: drawn, and seeds",
        "sqlite",
        clients.ids_granted_twice,
    ),
    Mutation(
        "copied machines grant one id",
        "§5: drawn",
        "memory",
        replaced(MemoryLeaseStorage, "random_bits", 0),
    ),
    Mutation("record given up", "§4.7: retried for ever", "sqlite", calls.record_given_up),
    Mutation(
        "record deleted before its acknowledgement is durable",
        "§4: one transaction",
        "sqlite",
        calls.acknowledgement_not_durable,
    ),
    Mutation("resolution not recorded", "§4: never will", "memory", calls.resolution_not_recorded),
    Mutation(
        "closed session reopened", "§5: never a new id", "spark", clients.closed_session_reopened
    ),
    Mutation(
        "closed session served", "§5, §8: zombies refused", "spark", clients.closed_session_served
    ),
    Mutation(
        "session opens by its name", "§5: by its secret", "spark", clients.session_opens_by_its_name
    ),
    Mutation(
        "session forgotten in use",
        "§5: unused is without a call",
        "spark",
        clients.unused_session_forgotten_in_use,
    ),
    Mutation(
        "late finisher not fenced", "§6: attempt token", "replicas", calls.late_finisher_not_fenced
    ),
    Mutation(
        "acknowledged run commits",
        "§4.6: acknowledged, judged late",
        "replicas",
        unclaimed.unclaimed_acknowledged,
    ),
    Mutation(
        "commit without a claim overwrites",
        "§4.6: where none stands",
        "replicas",
        unclaimed.unclaimed_overwrites,
    ),
    Mutation(
        "unclaimed run ends without asking",
        "§4.6: what stands is the answer",
        "replicas",
        unclaimed.ends_without_asking,
    ),
    Mutation(
        "record without a claim overwrites",
        "§4.6: where none stands",
        "replicas",
        unclaimed.finish_overwrites,
    ),
    Mutation(
        "what was never claimed did not run",
        "§4.6: a resolution says unknown",
        "replicas",
        unclaimed.resolved_means_not_executed,
    ),
    Mutation(
        "late answer to an acknowledged call",
        "§4: duplicates alike",
        "replicas",
        calls.late_answer_sent,
    ),
    Mutation(
        "forgotten record means not executed",
        "§4: known to be rolled back",
        "sqlite",
        replaced(NotRecorded, "outcome", Outcome.NOT_EXECUTED),
    ),
    Mutation(
        "one run's word for all", "§3: only what is known", "spark", calls.one_runs_word_for_all
    ),
    Mutation(
        "raising means rolled back",
        "§4: known to be rolled back",
        "replicas",
        streams.raising_means_rolled_back,
    ),
    Mutation(
        "raising means rolled back, by one server",
        "§4: known to be rolled back",
        "sqlite",
        streams.raising_means_rolled_back,
    ),
    Mutation(
        "raising means rolled back, of a session's row",
        "§4: known to be rolled back",
        "spark",
        streams.raising_means_rolled_back,
    ),
    Mutation(
        "broken stream run again as plain", "§1: plain", "memory", streams.broken_stream_repeated
    ),
    Mutation(
        "half a stream believed",
        "§4.2: the whole payload",
        "memory",
        streams.half_a_stream_believed,
    ),
    Mutation(
        "rest of a stream from the wrong place",
        "§4: messages it lacks",
        "memory",
        streams.rest_from_the_wrong_place,
    ),
    Mutation(
        "stream recorded before its last message",
        "§4: recorded whole",
        "memory",
        streams.recorded_before_the_last_message,
    ),
    Mutation(
        "long stream kept in part",
        "§3: RESPONSE_TOO_LARGE",
        "sqlite",
        streams.long_stream_kept_in_part,
    ),
    Mutation(
        "another run sends all messages",
        "§4: messages it lacks",
        "sqlite",
        streams.another_run_sends_all,
    ),
    Mutation("key let go early", "§3: kept for a stated time", "sqlite", calls.key_let_go_early),
    Mutation(
        "a key is not executed because this attempt was not",
        "§3: others share it",
        "replicas",
        calls.key_not_executed_as_this_attempt_was_not,
    ),
    Mutation("keys aged by dates", "§5: time lived through", "sqlite", calls.keys_aged_by_dates),
    Mutation(
        "key let go while its call runs",
        "§4: retention",
        "replicas",
        calls.key_let_go_while_it_runs,
    ),
    Mutation(
        "expired means never ran", "§3: only what is known", "replicas", clients.expired_never_ran
    ),
    Mutation(
        "item's id redrawn on retry",
        "§3: every attempt, one identity",
        "memory",
        calls.item_redrawn,
    ),
    Mutation(
        "batch recorded in part",
        "§4: records in one group",
        "sqlite",
        calls.batch_written_in_part(JournalEntry.RECORD),
    ),
    Mutation(
        "intents of a batch in part",
        "§4: intents in one group",
        "sqlite",
        calls.batch_written_in_part(JournalEntry.INTENT),
    ),
    Mutation(
        "lost means never arrived", "§3: only what is known", "replicas", calls.lost_never_arrived
    ),
    Mutation(
        "taken over from the living", "§6: a guess", "replicas", calls.taken_over_from_the_living
    ),
    Mutation(
        "unlabelled means not executed",
        "§3: only what is known",
        "memory",
        calls.unlabelled_means_not_executed,
    ),
    Mutation(
        "deadline means not executed",
        "§3: everything else is unknown",
        "memory",
        calls.out_of_time_means_not_executed,
    ),
    Mutation(
        "expired always sent anew", "§3: attempt 1 only", "memory", clients.expired_always_sent_anew
    ),
    Mutation(
        "final without witnesses",
        "§7.1: log, or all witnesses",
        "curp",
        groups.final_without_witnesses,
    ),
    Mutation(
        "witness accepts conflicts",
        "§7.2: no shared key",
        "curp",
        groups.conflicts_ignored_by_witnesses,
    ),
    Mutation("witness not frozen", "§7.2: freezing", "curp", groups.witness_not_frozen),
    Mutation(
        "restarted witness believed", "§7.2: unlisted", "curp", groups.restarted_witness_believed
    ),
    Mutation("groups told apart by name", "§7: the log's id", "curp", groups.groups_by_name),
    Mutation("late start believed", "§7.2: its own number", "curp", groups.late_start_believed),
    Mutation(
        "answered before a conflict is logged",
        "§7.3: commutes",
        "curp",
        groups.speed_without(Speed.CONFLICT),
    ),
    Mutation(
        "granted before its client is logged",
        "§5: before its id is told",
        "curp",
        clients.granted_unregistered(LogLeaseStorage),
    ),
    Mutation(
        "answered before its client is logged",
        "§7.3: registration",
        "curp",
        clients.answered_unregistered,
    ),
    Mutation(
        "other keys on the witnesses believed",
        "§7.3: commutes",
        "curp",
        groups.speed_without(Speed.OTHER_KEYS),
    ),
    Mutation("waiting answers kept", "§7.4: steps down", "curp", groups.waiting_answers_kept),
    Mutation("witness not replayed", "§7.5: recovery", "curp", groups.nothing_replayed),
    Mutation("recovery in one append", "§7.5: pieces", "curp", groups.recovered_in_one_append),
    Mutation("replay not filtered", "§7.6: trackers", "curp", groups.replay_not_filtered),
    Mutation("deaths not counted", "§7.12: beyond a bound", "curp", groups.deaths_not_counted),
    Mutation("who stepped down has died", "§7.12: lives on", "curp", groups.stepped_down_has_died),
    Mutation("suspects set aside", "§7.12: cannot have been", "curp", groups.suspects_set_aside),
    Mutation("versions not logged", "§7: the log's answer", "curp", groups.versions_not_logged),
    Mutation(
        "a newer leader saves a snapshot",
        "§7: saves no snapshot",
        "curp",
        groups.newer_leader_saves,
    ),
    Mutation("older version goes on", "§7: stops applying", "curp", groups.older_version_goes_on),
    Mutation("another leader's sync", "§7.9: configuration", "curp", groups.other_leader_syncs),
    Mutation("read lease for ever", "§7.10: reads", "curp", groups.read_lease_for_ever),
    Mutation(
        "read lease without its margin", "§7.10: drift", "curp", groups.read_lease_without_margin
    ),
    Mutation(
        "read lease counted from the reply",
        "§7.10: valid",
        "curp",
        groups.read_lease_from_the_reply,
    ),
    Mutation(
        "lease ended before its reads stop",
        "§7.10: waits out",
        "curp",
        groups.lease_ended_before_reads,
    ),
    Mutation("read of what is not logged", "§7.10: synced", "curp", groups.unlogged_read),
    Mutation(
        "configuration unchecked", "§7.11: number", "curp", groups.speed_without(Speed.NO_NUMBER)
    ),
    Mutation(
        "a call that skipped its records is answered before its append",
        "§7.1: no number",
        "curp",
        groups.skipped_under_a_number,
    ),
    Mutation(
        "witness drops what is not synced",
        "§7.12: collection",
        "curp",
        groups.collected_before_synced,
    ),
    Mutation("refusal not logged", "§7.13: not executed", "curp", groups.refusal_not_logged),
    Mutation(
        "a call refused by a group may come late",
        "§7.13; §3: will not",
        "curp",
        groups.refused_by_a_group_means_will_not,
    ),
    Mutation(
        "records of other numbers accepted",
        "§7.2: in force",
        "curp",
        group_logs.other_numbers_accepted,
    ),
    Mutation(
        "snapshot without completion records",
        "§7.8: unacknowledged",
        "curp",
        group_logs.snapshot_without_records,
    ),
    Mutation(
        "snapshot without acknowledgements",
        "§7.8: trackers",
        "curp",
        group_logs.snapshot_without_acknowledgements,
    ),
    Mutation(
        "snapshot while calls run",
        "§7.8: up to P only",
        "curp",
        rule_without(snapshot_taker, "compact", Halt=True, GoOn=None),
    ),
    Mutation(
        "snapshot of what is not logged",
        "§7.8: up to P only",
        "curp",
        rule_without(snapshot_taker, "compact", Sync=None),
    ),
    Mutation(
        "trimmed before it is saved", "§7.8: covered", "curp", group_logs.trimmed_before_saved
    ),
    Mutation(
        "list changed before its answers are logged",
        "§7.11: synced",
        "curp",
        rule_without(witness_list_keeper, "change_witnesses", Sync=None),
    ),
    Mutation(
        "number ended before its answers are logged",
        "§7.5: ended",
        "curp",
        rule_without(leading, "hand_over", Sync=None),
    ),
    Mutation(
        "list changed under the same number", "§7.11: number", "curp", group_logs.unnumbered_list
    ),
    Mutation(
        "batch answered before it is logged",
        "§7.1: a batch",
        "curp",
        group_logs.batch_answered_first,
    ),
    Mutation(
        "batch answered when its first call is logged",
        "§7.1: a batch",
        "curp",
        group_logs.batch_answered_by_its_first,
    ),
    Mutation(
        "a turn for each call of a batch",
        "§4: end together",
        "curp",
        group_logs.turn_for_each_of_a_batch,
    ),
    Mutation(
        "another number's writer not refused",
        "§7: conditional",
        "curp",
        replaced(checks, "require_configuration", lambda configuration, current: None),
    ),
    Mutation(
        "torn append recognised", "§7: one atomic step", "curp", group_logs.torn_append_recognised
    ),
)
