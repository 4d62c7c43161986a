//! The rules, in the order of the documents, and what checks each.
//!
//! A test is named by the short name of its file, as the list of files has it, and its own. `handshake`, `transmission`
//! and `extended` hold the codec against bytes written down from the document; the others are about a running server.

use Standing::{Checked, Explained};

/// A rule: the section that has it, itself in a few words, and how things stand.
pub(super) struct Rule(pub(super) &'static str, pub(super) &'static str, pub(super) Standing);

pub(super) enum Standing {
    /// These tests check it.
    Checked(&'static [&'static str]),
    /// Nobody does, and why.
    Explained(&'static str),
}

/// `doc/proto.md`, without what its branch for extended headers adds.
pub(super) const PROTOCOL: &[Rule] = &[
    // Handshake
    Rule(
        "Protocol phases",
        "TCP sockets have Nagle's algorithm off",
        Explained("`listener` sets `TCP_NODELAY`; a client can't see it"),
    ),
    Rule("Oldstyle negotiation", "all of it", Explained("not spoken: the document advises new servers against it")),
    Rule(
        "Newstyle negotiation",
        "the server greets with `NBDMAGIC`, `IHAVEOPT` and its flags",
        Checked(&["handshake::go_with_the_default_export", "e2e clients::clients_agree"]),
    ),
    Rule(
        "Newstyle negotiation",
        "what is not an option ends the connection",
        Checked(&[
            "handshake::garbage_ends_the_connection",
            "limits::garbage_in_a_handshake_ends_that_connection_alone",
        ]),
    ),
    Rule(
        "Newstyle negotiation",
        "`NBD_OPT_EXPORT_NAME` is answered with size, flags and 124 zeroes, and no replies come before",
        Checked(&["handshake::export_name_pads_for_clients_that_want_it", "protocol::the_old_way_into_transmission"]),
    ),
    Rule(
        "Fixed newstyle negotiation",
        "each reply has the reply magic, the option, a type and a length",
        Checked(&["handshake::info_tells_all_and_goes_on"]),
    ),
    Rule(
        "Fixed newstyle negotiation",
        "an option that is not known is answered with `NBD_REP_ERR_UNSUP`, and others may follow",
        Checked(&["handshake::refused_options_leave_the_handshake_alive"]),
    ),
    Rule(
        "Fixed newstyle negotiation",
        "options that are sent together are answered in order",
        Checked(&[
            "protocol::options_that_are_sent_together_are_answered_in_order",
            "handshake::any_bytes_in_any_split_end_the_same",
        ]),
    ),
    Rule(
        "Termination of the session during option haggling",
        "a client may leave at any moment, with or without a word",
        Checked(&["cves::cve_2013_7441_clients_that_leave_in_the_handshake"]),
    ),
    Rule(
        "Termination of the session during option haggling",
        "the server ends the connection only where it has no error reply, or a client denies others its service",
        Checked(&["handshake::garbage_ends_the_connection", "cves::cve_2017_15119_options_that_declare_gigabytes"]),
    ),
    Rule(
        "Termination of the session during option haggling",
        "a server that shuts down should answer options with `NBD_REP_ERR_SHUTDOWN`",
        Explained("it closes the connections that are in their handshakes, which may be done to any of them"),
    ),
    // Transmission
    Rule(
        "Transmission",
        "a reply has the cookie of its request, and replies come in any order",
        Checked(&[
            "requests::one_send_of_many_requests_is_one_batch",
            "e2e protocol::replies_belong_to_their_requests",
        ]),
    ),
    Rule(
        "Ordering of messages and writes",
        "what was answered before a flush is on stable storage when that is answered",
        Checked(&[
            "e2e connection_threads::a_flush_from_another_connection_covers_all_threads",
            "engine log::a_durable_write_and_a_flush_are_replied_to_at_the_commit_and_a_close_is_not",
        ]),
    ),
    Rule(
        "Ordering of messages and writes",
        "a command with FUA is answered when what it wrote is on stable storage",
        Checked(&[
            "engine log::a_durable_write_and_a_flush_are_replied_to_at_the_commit_and_a_close_is_not",
            "engine bytes::a_durable_write_of_bytes_is_durable",
        ]),
    ),
    Rule(
        "Request message",
        "a request without the magic ends the connection",
        Checked(&[
            "transmission::what_ends_the_connection",
            "requests::a_stream_out_of_step_ends_only_its_own_connection",
        ]),
    ),
    Rule(
        "Simple reply message",
        "replies are simple without structured ones, and data follow only a success",
        Checked(&["transmission::reply_headers", "requests::data_come_back_in_every_form_of_reply"]),
    ),
    Rule(
        "Structured reply chunk message",
        "with structured replies a read is answered with chunks, errors too, and the last is marked",
        Checked(&["transmission::reply_headers", "requests::refused_requests_leave_the_connection_alive"]),
    ),
    Rule(
        "Terminating the transmission phase",
        "after `NBD_CMD_DISC` the server answers what is under way, ends TLS and closes the connection",
        Checked(&["requests::a_disconnect_waits_for_replies", "tls::a_disconnect_is_answered_with_the_end_of_tls"]),
    ),
    Rule(
        "Terminating the transmission phase",
        "a shutdown should wait for requests that are under way",
        Checked(&["shutdown::requests_in_flight_are_answered_before_the_end"]),
    ),
    Rule(
        "Terminating the transmission phase",
        "errors at a shutdown should be `NBD_ESHUTDOWN`: with `--drain eshutdown`. By default requests that come then \
         are not read, because QEMU and Linux pass this error on to who asked, but repeat what has no reply when they \
         have connected again",
        Checked(&[
            "shutdown::requests_that_come_during_a_shutdown_are_refused_if_that_is_wanted",
            "e2e client_limits::requests_during_a_stop_are_refused_or_left_to_the_next_server",
        ]),
    ),
    Rule(
        "Terminating the transmission phase",
        "a client that drops the connection harms nobody else",
        Checked(&[
            "limits::commands_of_a_client_that_is_gone_finish_harmlessly",
            "limits::a_client_killed_in_the_middle_of_a_write_leaves_nothing_behind",
        ]),
    ),
    // TLS
    Rule(
        "NOTLS mode",
        "`NBD_OPT_STARTTLS` is answered with `NBD_REP_ERR_POLICY`, and nothing with `NBD_REP_ERR_TLS_REQD`",
        Checked(&[
            "handshake::refused_options_leave_the_handshake_alive",
            "e2e tls::clients_that_insist_on_tls_do_not_get_it_from_a_server_without",
        ]),
    ),
    Rule(
        "FORCEDTLS mode",
        "before TLS every option but STARTTLS and ABORT is answered with `NBD_REP_ERR_TLS_REQD`",
        Checked(&[
            "handshake::forced_tls_refuses_every_option_but_starttls_and_abort",
            "e2e tls::clients_in_the_clear_are_refused",
        ]),
    ),
    Rule(
        "FORCEDTLS mode",
        "before TLS `NBD_OPT_EXPORT_NAME` ends the session",
        Checked(&["handshake::forced_tls_ends_the_session_at_export_name"]),
    ),
    Rule(
        "FORCEDTLS mode",
        "after the acknowledgement everything is in TLS, and a handshake of TLS that fails ends the session",
        Checked(&[
            "tls::what_is_not_tls_ends_the_connection",
            "e2e tls::a_client_that_trusts_another_authority_leaves",
        ]),
    ),
    Rule(
        "FORCEDTLS mode",
        "a second STARTTLS is answered with `NBD_REP_ERR_INVALID`, and nothing in TLS with `NBD_REP_ERR_TLS_REQD`",
        Checked(&[
            "handshake::a_second_starttls_is_invalid",
            "handshake::in_tls_there_is_no_second_greeting_and_every_option_works",
        ]),
    ),
    Rule(
        "SELECTIVETLS mode",
        "all of it",
        Explained("not offered: TLS is required or refused, never the client's choice"),
    ),
    Rule(
        "Server-side requirements",
        "no TLS without fixed newstyle",
        Checked(&["handshake::a_client_that_is_not_fixed_newstyle_can_not_start_tls"]),
    ),
    Rule(
        "Protocol downgrade attacks",
        "what was said in the clear has no meaning in TLS",
        Checked(&[
            "handshake::what_was_negotiated_in_the_clear_has_no_meaning_in_tls",
            "handshake::nothing_in_the_clear_may_follow_starttls",
        ]),
    ),
    // Size constraints
    Rule(
        "Size constraints",
        "minimum, preferred and maximum sizes keep to the rules, and the size is a multiple of the minimum",
        Checked(&["sockets::exports_that_the_protocol_can_not_describe_are_refused"]),
    ),
    Rule(
        "Size constraints",
        "clients that don't ask for the sizes are served",
        Checked(&["handshake::structured_replies_add_the_df_flag", "e2e bytes::takes_any_bytes"]),
    ),
    Rule(
        "Size constraints",
        "requests that keep to no block size are served, or refused without harm",
        Checked(&[
            "e2e protocol::unaligned_requests_are_refused_or_exact",
            "transmission::refusals_have_the_error_of_the_document",
        ]),
    ),
    Rule(
        "Size constraints",
        "payloads of up to 32 MiB don't end the connection, even beyond the maximum",
        Checked(&[
            "requests::refused_requests_leave_the_connection_alive",
            "e2e protocol::oversized_requests_are_refused_and_the_connection_lives",
        ]),
    ),
    Rule(
        "Size constraints",
        "commands without a payload may be larger than the maximum payload",
        Checked(&[
            "transmission::zeroing_and_trimming_may_exceed_the_maximum_payload",
            "e2e connection_threads::the_whole_array_is_zeroed_in_one_request",
        ]),
    ),
    // Metadata
    Rule(
        "Metadata querying",
        "there is no block status without a context: `NBD_EINVAL`",
        Checked(&["requests::block_status_and_zeroes"]),
    ),
    Rule(
        "The `base:` metadata namespace",
        "`base:` lists every context and selects none; leaf names that are not known are ignored",
        Checked(&["handshake::metadata_contexts"]),
    ),
    Rule(
        "`base:allocation` metadata context",
        "what is said to be zeroes reads as such; a hole is said only where there is no space",
        Checked(&[
            "e2e sparse::content_is_never_said_to_be_zeros",
            "e2e sparse::a_trim_reads_as_zeros_and_gives_space_back_and_zeros_do_not_take_it_again",
        ]),
    ),
    // Values of the handshake
    Rule(
        "Handshake flags",
        "fixed newstyle and no-zeroes are set, and nothing else",
        Checked(&["handshake::go_with_the_default_export"]),
    ),
    Rule("Client flags", "unknown ones end the connection", Checked(&["handshake::garbage_ends_the_connection"])),
    Rule(
        "Client flags",
        "with no-zeroes the 124 zeroes are left out",
        Checked(&["handshake::read_only_exports_offer_no_writes"]),
    ),
    Rule(
        "Transmission flags",
        "`HAS_FLAGS` is set, and each other flag where the export can do what it says",
        Checked(&["handshake::go_with_the_default_export", "handshake::read_only_exports_offer_no_writes"]),
    ),
    Rule(
        "Transmission flags",
        "`READ_ONLY`: writes are refused",
        Checked(&["requests::read_only_exports_refuse_writes"]),
    ),
    Rule(
        "Transmission flags",
        "`ROTATIONAL` may be set: it is if a member rotates",
        Checked(&[
            "handshake::exports_on_disks_that_rotate_say_so",
            "e2e clients::a_server_says_whether_its_members_rotate",
        ]),
    ),
    Rule(
        "Transmission flags",
        "`SEND_DF` is set with structured replies, and only with them",
        Checked(&["handshake::structured_replies_add_the_df_flag"]),
    ),
    Rule(
        "Transmission flags",
        "`CAN_MULTI_CONN`: a flush on one connection covers all",
        Checked(&["e2e connection_threads::a_flush_from_another_connection_covers_all_threads"]),
    ),
    Rule(
        "Transmission flags",
        "`SEND_RESIZE`",
        Explained("not at HEAD: it belongs to the experimental extension `RESIZE`, which no known client uses"),
    ),
    Rule(
        "Transmission flags",
        "`SEND_FAST_ZERO` goes with `SEND_WRITE_ZEROES`",
        Checked(&["handshake::read_only_exports_offer_no_writes", "handshake::go_with_the_default_export"]),
    ),
    // Options
    Rule(
        "Option types",
        "EXPORT_NAME of an export that there is not ends the connection",
        Checked(&["handshake::garbage_ends_the_connection"]),
    ),
    Rule(
        "Option types",
        "ABORT is acknowledged and ends the connection; that the client is gone already is no error",
        Checked(&["handshake::list_and_abort", "protocol::abort_is_acknowledged_and_ends_the_connection"]),
    ),
    Rule(
        "Option types",
        "LIST gives each export and an acknowledgement, and `NBD_REP_ERR_INVALID` with data",
        Checked(&[
            "handshake::list_and_abort",
            "several::list_has_all_in_order",
            "handshake::refused_options_leave_the_handshake_alive",
            "e2e clients::nbd_client_lists_a_tcp_export",
        ]),
    ),
    Rule(
        "Option types",
        "STARTTLS takes no data, and forgets all that was negotiated",
        Checked(&[
            "handshake::starttls_takes_no_data",
            "handshake::what_was_negotiated_in_the_clear_has_no_meaning_in_tls",
        ]),
    ),
    Rule(
        "Option types",
        "INFO and GO tell `NBD_INFO_EXPORT` and what was asked for, and acknowledge; GO begins transmission",
        Checked(&["handshake::info_tells_all_and_goes_on", "handshake::go_with_the_default_export"]),
    ),
    Rule(
        "Option types",
        "INFO and GO ignore items that they don't know",
        Checked(&["protocol::items_of_information_that_are_not_known_are_ignored"]),
    ),
    Rule(
        "Option types",
        "INFO and GO of an export that there is not: `NBD_REP_ERR_UNKNOWN`; the client may try others",
        Checked(&[
            "handshake::refused_options_leave_the_handshake_alive",
            "cves::cve_2019_14851_questions_before_the_choice",
        ]),
    ),
    Rule(
        "Option types",
        "GO may be refused with `NBD_REP_ERR_BLOCK_SIZE_REQD`",
        Explained("not needed: every request of whole bytes is served"),
    ),
    Rule(
        "Option types",
        "the empty name is that of the default export, if there is one: of several none is",
        Checked(&[
            "handshake::go_with_the_default_export",
            "several::the_empty_name_is_that_of_the_only_export_or_of_the_one_that_is_called_so",
        ]),
    ),
    Rule(
        "Option types",
        "STRUCTURED_REPLY takes no data",
        Checked(&["handshake::refused_options_leave_the_handshake_alive"]),
    ),
    Rule(
        "Option types",
        "LIST_META_CONTEXT and SET_META_CONTEXT: `NBD_REP_ERR_INVALID` without structured replies",
        Checked(&["handshake::metadata_contexts"]),
    ),
    Rule(
        "Option types",
        "LIST_META_CONTEXT without queries lists everything, SET_META_CONTEXT without queries selects nothing",
        Checked(&["handshake::metadata_contexts"]),
    ),
    Rule(
        "Option types",
        "the last SET_META_CONTEXT counts, even if it failed, for the export that it names",
        Checked(&[
            "handshake::the_last_selection_of_contexts_counts",
            "several::contexts_are_those_of_the_export_that_they_were_selected_for",
        ]),
    ),
    Rule(
        "Option reply types",
        "what is malformed: `NBD_REP_ERR_INVALID`; what is too long: `NBD_REP_ERR_TOO_BIG`",
        Checked(&["handshake::refused_options_leave_the_handshake_alive", "handshake::metadata_contexts"]),
    ),
    Rule(
        "Values",
        "strings have at most 4096 bytes and no NUL",
        Checked(&[
            "sockets::exports_that_the_protocol_can_not_describe_are_refused",
            "cves::cve_2022_26496_names_that_are_longer_than_any",
        ]),
    ),
    // Commands
    Rule(
        "Command flags",
        "FUA is accepted on every command; other flags only on theirs",
        Checked(&[
            "transmission::every_command_with_its_flags",
            "transmission::refusals_have_the_error_of_the_document",
        ]),
    ),
    Rule(
        "Request types",
        "requests of length 0 don't end the connection",
        Checked(&["protocol::requests_of_nothing_leave_the_connection_alive"]),
    ),
    Rule(
        "Request types",
        "READ: all data or an error, in chunks that don't overlap; with DF in one chunk",
        Checked(&[
            "requests::data_come_back_in_every_form_of_reply",
            "requests::many_small_writes_arrive_whole_wherever_the_reads_cut_them",
        ]),
    ),
    Rule(
        "Request types",
        "READ with DF that is too large for one chunk: `NBD_EOVERFLOW`",
        Checked(&["requests::refused_requests_leave_the_connection_alive"]),
    ),
    Rule(
        "Request types",
        "WRITE stores the data before it is answered",
        Checked(&["e2e clients::clients_agree", "requests::data_come_back_in_every_form_of_reply"]),
    ),
    Rule("Request types", "DISC has no reply", Checked(&["requests::a_disconnect_waits_for_replies"])),
    Rule(
        "Request types",
        "FLUSH of a range is refused: offset and length are reserved",
        Checked(&["transmission::refusals_have_the_error_of_the_document"]),
    ),
    Rule(
        "Request types",
        "TRIM: clients may assume nothing; here it reads as zeroes",
        Checked(&["e2e bytes::a_trim_of_any_bytes_leaves_the_rest"]),
    ),
    Rule(
        "Request types",
        "CACHE changes nothing but speed, and refuses unknown flags",
        Checked(&[
            "transmission::every_command_with_its_flags",
            "transmission::refusals_have_the_error_of_the_document",
        ]),
    ),
    Rule(
        "Request types",
        "WRITE_ZEROES reads back as zeroes; with NO_HOLE the space is there",
        Checked(&[
            "requests::block_status_and_zeroes",
            "e2e sparse::a_trim_reads_as_zeros_and_gives_space_back_and_zeros_do_not_take_it_again",
        ]),
    ),
    Rule(
        "Request types",
        "WRITE_ZEROES with FAST_ZERO fails with `NBD_ENOTSUP` at once if zeroes would have to be written",
        Checked(&[
            "e2e sparse::fast_zeros_are_refused_where_they_would_be_written",
            "requests::refused_requests_leave_the_connection_alive",
        ]),
    ),
    Rule(
        "Request types",
        "BLOCK_STATUS: one chunk of at least one extent, consecutive from the offset on, none of them empty",
        Checked(&["transmission::block_status", "requests::block_status_and_zeroes"]),
    ),
    Rule(
        "Request types",
        "BLOCK_STATUS with REQ_ONE: one extent, not longer than the request",
        Checked(&["transmission::block_status", "requests::block_status_and_zeroes"]),
    ),
    Rule(
        "Request types",
        "BLOCK_STATUS has at most 2^20 extents, and neighbours differ where that is feasible",
        Checked(&[
            "transmission::block_status",
            "e2e sparse::a_new_sparse_array_is_a_hole_and_a_page_of_content_makes_no_more_than_that_data",
        ]),
    ),
    Rule(
        "Error values",
        "beyond the end: `NBD_ENOSPC` for writes and zeroes, `NBD_EINVAL` for the rest",
        Checked(&[
            "transmission::refusals_have_the_error_of_the_document",
            "e2e protocol::wrong_requests_are_answered_and_the_connection_lives",
            "e2e bytes::bytes_beyond_the_end_are_refused",
        ]),
    ),
    Rule(
        "Error values",
        "a write or trim of a read-only export: `NBD_EPERM`",
        Checked(&[
            "transmission::refusals_have_the_error_of_the_document",
            "requests::read_only_exports_refuse_writes",
        ]),
    ),
    Rule(
        "Error values",
        "unknown commands, unknown flags and flags that were not negotiated: `NBD_EINVAL`",
        Checked(&["transmission::refusals_have_the_error_of_the_document"]),
    ),
    Rule(
        "Error values",
        "`NBD_ENOMEM` only if there is no other way",
        Checked(&[
            "limits::a_request_without_memory_is_refused_and_the_connection_lives",
            "e2e limits::memory_that_is_not_there_is_an_error_to_who_asks_for_it",
        ]),
    ),
    Rule(
        "Baseline",
        "all that a server must, and for the most interoperability should, have",
        Checked(&[
            "e2e clients::clients_agree",
            "clients::nbdinfo_reads_what_is_served",
            "clients::qemu_img_converts_and_compares",
        ]),
    ),
];

/// What the branch `extension-ext-header` adds to `doc/proto.md`.
pub(super) const EXTENDED_HEADERS: &[Rule] = &[
    Rule(
        "Option types",
        "EXTENDED_HEADERS takes no data, is acknowledged once, and includes structured replies",
        Checked(&[
            "handshake::extended_headers_include_structured_replies",
            "handshake::refused_options_leave_the_handshake_alive",
        ]),
    ),
    Rule(
        "Option types",
        "STRUCTURED_REPLY after it: `NBD_REP_ERR_EXT_HEADER_REQD`",
        Checked(&["handshake::extended_headers_include_structured_replies"]),
    ),
    Rule(
        "Option types",
        "STARTTLS forgets it",
        Checked(&["handshake::what_was_negotiated_in_the_clear_has_no_meaning_in_tls"]),
    ),
    Rule(
        "Transmission flags",
        "`BLOCK_STATUS_PAYLOAD` goes with it, and with a context",
        Checked(&["handshake::extended_headers_include_structured_replies"]),
    ),
    Rule(
        "Request message",
        "afterwards requests have the extended form, and only that",
        Checked(&["extended::every_command_with_its_flags", "requests::payloads_that_no_command_wants_are_skipped"]),
    ),
    Rule(
        "Request message",
        "a payload follows if `PAYLOAD_LEN` says so; it is consumed even if the request is refused",
        Checked(&[
            "extended::refusals_skip_the_payload_and_nothing_else",
            "requests::payloads_that_no_command_wants_are_skipped",
        ]),
    ),
    Rule(
        "Request message",
        "a payload that is larger than any maximum ends the connection",
        Checked(&["extended::what_ends_the_connection"]),
    ),
    Rule(
        "Request message",
        "lengths without a payload have 64 bits",
        Checked(&[
            "extended::lengths_have_64_bits",
            "e2e extended::a_tebibyte_is_trimmed_zeroed_and_asked_about_in_one_request",
        ]),
    ),
    Rule(
        "Extended reply chunk message",
        "every reply is an extended chunk, with the offset of its request",
        Checked(&[
            "extended::every_reply_is_an_extended_chunk_with_the_offset_of_its_request",
            "requests::data_come_back_in_every_form_of_reply",
        ]),
    ),
    Rule(
        "Structured reply types",
        "block status has extents of 64 bits and their number, and upper bits of their status are 0",
        Checked(&["extended::block_status", "requests::block_status_with_extended_headers"]),
    ),
    Rule(
        "Request types",
        "BLOCK_STATUS may name its contexts; unknown ones, duplicates and wrong lengths: `NBD_EINVAL`",
        Checked(&["extended::a_status_of_chosen_contexts", "extended::refusals_skip_the_payload_and_nothing_else"]),
    ),
];

/// `doc/uri.md`.
pub(super) const URI: &[Rule] = &[
    Rule(
        "NBD URI scheme",
        "`nbd` and `nbd+unix` without TLS, `nbds` and `nbds+unix` with it",
        Checked(&["endpoint::unix_sockets_and_tcp_addresses", "e2e tls::tls_is_required_on_a_unix_socket_too"]),
    ),
    Rule(
        "NBD URI authority",
        "host and port of TCP sockets, IPv6 in brackets; none of Unix sockets",
        Checked(&["endpoint::unix_sockets_and_tcp_addresses", "sockets::tcp_on_several_addresses"]),
    ),
    Rule(
        "NBD URI export name",
        "the path without its first slash, percent-encoded",
        Checked(&["endpoint::unix_sockets_and_tcp_addresses", "clients::nbdinfo_reads_what_is_served"]),
    ),
    Rule(
        "NBD URI socket parameter",
        "Unix sockets are named by `socket`, percent-encoded",
        Checked(&["endpoint::unix_sockets_and_tcp_addresses", "clients::nbdinfo_reads_what_is_served"]),
    ),
    Rule(
        "NBD URI query parameters related to TLS",
        "all of them",
        Explained("they are for clients: the server prints none"),
    ),
];
