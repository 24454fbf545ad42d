"""A served log is the same log: the library's own tests, over gRPC (issue 17, DESIGN-LOG §12, §13).

Those that matter most on a wire; the others are in ``test_same_log_whole``.
"""

from tests.sharedlog.log.test_following import (
    filled,
    test_a_named_follower_goes_on_behind_what_it_has_done,
    test_a_stream_is_followed_from_a_time_and_from_its_end,
    test_each_position_is_a_whole_checkpoint,
    test_of_two_followers_of_one_name_the_one_behind_learns_of_the_other,
    test_what_makes_no_sense_is_refused,
    test_who_held_what_an_operator_dropped_is_told_until_the_name_is_forgotten,
)
from tests.sharedlog.log.test_named import test_an_unanswered_commit_is_sent_again
from tests.sharedlog.log.test_publishing import (
    test_an_unanswered_append_is_sent_again_and_is_there_once,
    test_threads_that_meet_share_appends_and_lose_nothing,
)
from tests.sharedlog.log.test_transactions import (
    test_an_exception_rolls_back,
    test_under_a_fence_that_was_raised_nothing_is_committed,
    test_whatever_is_not_answered_is_sent_again,
)

__all__ = [
    "filled",
    "test_a_named_follower_goes_on_behind_what_it_has_done",
    "test_a_stream_is_followed_from_a_time_and_from_its_end",
    "test_an_exception_rolls_back",
    "test_an_unanswered_append_is_sent_again_and_is_there_once",
    "test_an_unanswered_commit_is_sent_again",
    "test_each_position_is_a_whole_checkpoint",
    "test_of_two_followers_of_one_name_the_one_behind_learns_of_the_other",
    "test_threads_that_meet_share_appends_and_lose_nothing",
    "test_under_a_fence_that_was_raised_nothing_is_committed",
    "test_what_makes_no_sense_is_refused",
    "test_whatever_is_not_answered_is_sent_again",
    "test_who_held_what_an_operator_dropped_is_told_until_the_name_is_forgotten",
]
