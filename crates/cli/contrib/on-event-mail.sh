#!/bin/sh
# Mails what happens to an array: uraid serve --on-event /usr/local/lib/uraid/on-event-mail.sh
#
# URAID_MAIL_TO says to whom (root without it), URAID_MAIL_FROM from whom. URAID_MAIL_EVENTS lists the events that are
# mailed, with blanks between them; "all" is every event. Without it these are: what needs somebody, and what ends it.
# The mail goes to sendmail, which every mail system has, or to mail.

set -eu

event=$1
array=$2
shift 2

wanted=${URAID_MAIL_EVENTS:-"degraded stalled failing frozen salvage recovered member-missing member-failed \
member-failing member-deleted member-stalled member-lagging member-no-room member-smart log-device-failed \
log-device-deleted log-device-stalled unwritten written-out \
content-lost content-restored spare-taken rebuild-stuck replace-stuck replace-stopped replace-rebuilding \
reshape-stuck scrub-incomplete scrub-mismatch"}
case " $wanted " in
    *" all "* | *" $event "*) ;;
    *) exit 0 ;;
esac

to=${URAID_MAIL_TO:-root}
host=$(uname -n)
# A subject is one line, whatever the array is called.
subject=$(printf 'uraid on %s: %s: %s' "$host" "$array" "$event" | tr -d '\r\n')

body() {
    printf 'Event:  %s\nArray:  %s\nHost:   %s\n' "$event" "$array" "$host"
    for member; do
        printf 'Member: %s\n' "$member"
    done
    printf 'Health: %s\n\n%s\n' "${URAID_HEALTH:-not known}" 'uraid status shows more.'
}

PATH=$PATH:/usr/sbin:/usr/lib
if command -v sendmail >/dev/null; then
    {
        [ -z "${URAID_MAIL_FROM:-}" ] || printf 'From: %s\n' "$URAID_MAIL_FROM"
        printf 'To: %s\nSubject: %s\nAuto-Submitted: auto-generated\n' "$to" "$subject"
        printf 'MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\n'
        body "$@"
    } | sendmail -i -t
elif command -v mail >/dev/null; then
    body "$@" | mail -s "$subject" "$to"
else
    echo "on-event-mail.sh: there is neither sendmail nor mail: install a mail system, such as msmtp-mta" >&2
    exit 1
fi
