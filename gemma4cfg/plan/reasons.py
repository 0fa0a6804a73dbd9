"""The closed list of reasons: why a decision was taken, or an option turned down. Each carries its sentence."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """``value`` is the identifier that stands in a plan; ``sentence`` says it to a person."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> Reason:
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member

    @classmethod
    def sentence_of(cls, identifier: str) -> str:
        """The sentence of an identifier read from a plan."""
        return next(member.sentence for member in cls if member.value == identifier)

    # why it was chosen
    REQUESTED = ("requested", "the configuration asks for it")
    ARCHITECTURE = ("architecture", "the model is built that way")
    ONLY_OPTION = ("only_option", "nothing else is possible here")
    FEWEST_BYTES = ("fewest_bytes", "fewest device bytes per rank")
    FEWEST_COLLECTIVES = ("fewest_collectives", "fewest collectives")
    FIRST_IN_ORDER = ("first_in_order", "as few bytes as any, first in the order of preference")
    DEFAULT = ("default", "the usual choice where nothing speaks against it")
    SMALLEST_TARGET = ("smallest_target", "the smallest machine on which the plan fits")
    SDK_OF_TARGET = ("sdk_of_target", "the release named for this machine's family")
    DTYPE_OF_TARGET = ("dtype_of_target", "the fastest type this machine has for the model")
    GATHER_TABLE = ("gather_table", "one row a token is read: a table for the host, not a device weight")
    MONOTONIC = (
        "monotonic",
        "it keeps the order of the logits, so greedy tokens are unchanged and the device saves the work",
    )
    PUBLISHED_FAILURE = ("published_failure", "a published failure of this compiler on these shapes")
    NO_RANK_DEPENDENCE = ("no_rank_dependence", "every rank runs the same graph on the same kind of slice")
    SMALL_AND_SHARED = ("small_and_shared", "small, and every rank needs all of it")
    ONE_CORE = ("one_core", "one core runs the model whole")
    ONE_RANK_COMPILED = ("one_rank_compiled", "one rank is compiled and all run it: the least that compiling can take")
    ALL_RANKS_COMPILED_FIT = ("all_ranks_compiled_fit", "supported, and all ranks compile within host memory")
    STACK_OF_TARGET = ("stack_of_target", "the serving stack of this machine does it")
    BEST_BY_OBJECTIVE = ("best_by_objective", "the best by the objective of all that fit")

    # why an option was turned down
    MORE_BYTES = ("more_bytes", "more device bytes per rank")
    MORE_COLLECTIVES = ("more_collectives", "more collectives")
    NOT_REQUESTED = ("not_requested", "only used when asked for")
    HEADS_NOT_DIVISIBLE = ("heads_not_divisible", "a cut would not be whole heads")
    NOT_NEEDED = ("not_needed", "nothing is gained by it here")
    NOT_SUPPORTED = ("not_supported", "this release does not support it on this machine")
    DOES_NOT_FIT = ("does_not_fit", "it does not fit")
    TOO_FEW_CORES = ("too_few_cores", "the machine has fewer cores than ranks")
    OTHER_STACK = ("other_stack", "it belongs to another stack")
    RANK_DEPENDENT = ("rank_dependent", "ranks differ by a tensor of ids")
    DEVICE_WORK = ("device_work", "work on the device that the host does for free")
    LARGER_TARGET = ("larger_target", "a smaller machine is enough")

    # why a search turned one down
    NOT_POSSIBLE = ("not_possible", "the configuration refuses it")
    SAME_PLAN = ("same_plan", "it gives the same plan")
    PRICE_UNKNOWN = ("price_unknown", "no price is known")
    ABOVE_PRICE_CEILING = ("above_price_ceiling", "the machine's price is above the ceiling")
    BELOW_SPEED_FLOOR = ("below_speed_floor", "fewer tokens a second than the floor")
    SLOWER = ("slower", "more milliseconds a token")
    COSTLIER = ("costlier", "more dollars a million tokens")
    MORE_MEMORY = ("more_memory", "more device bytes on all ranks together")
    LATER_IN_ORDER = ("later_in_order", "no better by anything, and later in the order of preference")
