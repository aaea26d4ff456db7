"""General synonyms for searching tools, specific to no server.

There are two kinds of lines. `send deliver transmit` says that each of these words stands for the others. `rain snow >
weather forecast` says that a query with a word on the left may mean those on the right, but not vice versa. A phrase
is joined by `_`. Words are stemmed when they are read, so one form of each is enough.
"""

from __future__ import annotations

from typing import Final

GENERAL: Final = """
# what is done
send deliver dispatch transmit submit
send > post message
email mail
create add make new insert generate build compose
create > write post open start upsert
register enroll enrol signup sign_up > create add
draw plot render paint visualize visualise graph chart diagram > chart generate diagram
delete remove erase destroy drop discard purge wipe trash
throw_away get_rid clear bin forget scrap eliminate > delete remove
clean tidy > cleanup delete
list enumerate show display browse view
get fetch retrieve read obtain load pull
get list
see look tell give check inspect examine > get list show read
view show open > get read
describe detail info information metadata
describe explain > detail info schema documentation
search find query lookup locate look_up seek discover
grep scan hunt look_for > search find
update change edit modify alter amend adjust revise
update > set patch
fix correct overwrite replace rewrite > update edit
rename relabel retitle
rename > update move
move transfer relocate mv shift
copy duplicate clone replicate cp
download save export
save store keep record persist remember memorize note_down > create write add save
write put save
jot jot_down write_down > append add note write
take_out take_away take_off leave_out drop_from > remove delete
post publish
continue go_on > resume
upload attach import
run execute exec launch invoke
run start > execute process
start begin launch initiate trigger
stop end halt abort terminate kill quit
cancel revoke abort call_off undo > cancel delete
undo revert roll_back rollback restore reset unstage
close finish complete done resolve tick_off mark_done check_off
finish done > close complete update
reopen resume unarchive
approve accept confirm agree sign_off
decline reject refuse deny say_no
mute silence suppress quiet
mute > downtime
schedule plan book arrange
book plan > create schedule
reply answer respond
reply > comment
forward pass_on redirect
share invite grant allow > permission share add
allow permit allowed_to > allowed permission
onboarding introduction beginner get_started tutorial > guide onboarding prompt
unshare revoke > permission delete
assign delegate hand_over give > assign member
subscribe follow watch monitor
let_me_know keep_an_eye whenever > watch monitor subscribe
notify tell inform announce alert > send post message notification
popup toast desktop_alert > notification
try try_out > test check
remind nudge bother ping > reminder
snooze postpone delay put_off push_back
postpone put_off push_back > due update
count number total how_many
summarize summary overview digest
compare diff difference
change > diff
many several multiple bulk batch at_once in_one_go
hits outcome > result
next_page next_hits more_hits > more result
all every > list
one_of > single
lately latest newest last > recent
going_on happened happening > activity history recent
merge combine join
split divide separate
convert transform translate turn_into
calculate compute evaluate work_out calculator
calculate > math sum
multiply times plus minus divide add_up arithmetic > calculate sum
validate verify check
refresh sync reload
login log_in sign_in authenticate authentication
logout log_out sign_out
click press tap push_button
hit shortcut enter_key > press key
type enter input > type fill text
fill complete_form > fill form
choose pick select
dropdown combobox menu > select option
scroll swipe > mouse press
navigate visit go_to browse open_url
open > navigate get
wait pause sleep
capture take grab > screenshot snapshot
scrape extract crawl > scrape extract crawl
archive shelve > archive
restart reboot > restart rollout
deploy release rollout ship
install setup set_up
uninstall remove
expose tunnel proxy > port forward

# people, talk and post
message chat dm im
message > post send
note memo > note message page
channel room
thread conversation discussion
reaction emoji thumbs_up like_it > reaction
people person user member colleague coworker teammate employee staff
people who everybody everyone anybody > user member
access > permission user
recipient addressee > email to
profile account
contact address_book > contact
boss manager > organization
hierarchy reports_to org > organization
mailbox inbox folder
unread new_mail > email list
attachment enclosure
label tag category
keyword sticker colour_code hashtag > label tag category
colour color
draft unsent
comment remark feedback annotation
say said wrote > comment message
bad good rate rating opinion quality complaint > feedback

# time
calendar agenda diary
calendar schedule > event
event meeting appointment
party dinner lunch birthday trip flight conference > event calendar
appointment call > calendar event
invitation invite rsvp > event accept
attendee guest participant
tomorrow today tonight week upcoming > calendar event
reminder alarm
time clock hour > time
noon midnight o_clock > time
timezone time_zone
deadline due due_date
holiday vacation leave time_off pto
sick absent absence illness > leave
hours hours_worked working_hours > timesheet
hourly daily weekly every_day once_a_day recurring > schedule recurring
yesterday past previous earlier > history recent

# code
repo repository codebase
repository > project
project > repository
issue ticket bug
defect problem fault > issue
pull_request pr merge_request mr
pull_request > review
approve propose proposed_change > review pull request
ci build_status pipeline check green > status
commit revision changeset
check_in > commit
branch
switch change_over > checkout select context
checkout switch_branch > branch
stage index staging > add staged unstaged
modified touched uncommitted > status unstaged diff
version_control vcs > git
history changelog > log commit
who_did who_changed audit trail > history activity
developer programmer login > user
code source
fork own_copy > fork
log logs
stacktrace exception crash > error log
function method > code

# files
folder directory dir path
file document
file > content
disk drive filesystem > file
ls dir > list directory
mkdir > create directory
rm rmdir > delete
cat > read
size big large > info size
tree hierarchy recursive nested > tree
line lines > edit
zip compress gzip archive_file
picture image photo img
picture > media screenshot
pdf doc > document
note > document file
document article entry > page
plain_text > text markdown
receipt scan > attachment
lines_of_text paragraph > content text append
append at_the_end

# data
database db
database sql > query table
table sheet
table database > data source
row record entry
row > query
column field attribute property
column > schema
schema structure
sql select_statement > query
base workbook
spreadsheet excel csv > spreadsheet sheet
key value > key
cache > key
graph_database knowledge > graph memory entity
fact facts observation
learn lesson finding takeaway > insight observation
remember memory > observation entity memory
forget > delete memory entity
entity node
relation relationship link edge

# the web
browser chrome
page website site webpage web_page tab
url link address web_address
website site > web url crawl
web internet online
news article > search
screen display > screenshot snapshot
screenshot snapshot
screenshot > image
javascript js script
js > evaluate
popup alert_box confirmation dialog
password textbox text_box > fill type form input
form fields > fill
request http xhr ajax network
response server_answer > request network
previous go_back back > back
window viewport
performance speed slow fast quick latency > performance
slow > trace
leak memory_leak heap > heapsnapshot memory
seo accessible accessibility a11y > lighthouse audit accessibility
console devtools > console
research investigate study
think reason ponder step_by_step > thinking thought
paper academic scientific publication literature > paper research search
watch_for changes_to > monitor

# places and weather
weather climate
rain snow sunny temperature wind humid > weather forecast
forecast prediction
storm hurricane flood warning > alert weather
current_conditions now > current
place location spot
restaurant cafe shop nearby near > place local search
address street > geocode
coordinate latitude longitude lat lng gps > geocode location coordinate
direction route way_to
drive walk travel get_to journey > direction route distance
distance how_far
altitude height elevation
height high sea_level mountain > elevation
map atlas
accommodation apartment flat lodging hotel room_to_rent > listing
rent stay > listing

# work
task todo chore
task > issue card
subtask child_task
card ticket
board kanban
project initiative
section lane
heading header part piece portion chunk > section block
paragraph sentence > block content text
checklist check_list
todo_list task_list steps > checklist item
workspace organization organisation team
company organisation organization > organisation workspace
work job_to_do > task project
milestone goal > project
priority urgent > task
overdue late > task filter
progress status
assigned_to_me mine > my

# money and shops
money cash fund
money > balance account
account wallet
by_hand manually > manual
linked connected > synced sync
balance situation
balance > account
transaction spending expense
cost booking > expense transaction
subscription every_month monthly regular > recurring
expense purchase payment spent > transaction
ledger books bookkeeping > transaction account journal
payment pay
paid > payment
invoice bill
bill > create
quote estimate proposal
customer client buyer
supplier vendor > contact
client > contact customer
owe unpaid outstanding debtor > receivable aged
we_owe creditor > payable aged
profit earn income revenue
earn loss > profit
tax vat gst
salary wage payroll
worker staff > employee
credit_note refund
budget spending_plan
bank > bank transaction account
crypto cryptocurrency bitcoin
coin btc eth ethereum token_balance exchange > crypto cryptocurrency balance
product item article goods
sell stuff inventory merchandise > product item
order purchase
bought buy purchase_history > order
shop store
quarter annual month_end year > report history
report statement

# machines
kubernetes k8s kube
deployment statefulset daemonset ingress configmap > kubernetes resource
kind_of_object object_types > resource
cluster node server
pod container
container > pod

replica instance
shell bash terminal command cmd
shell > exec process
process program job
machine host computer server
incident outage
broke broken is_down failing production > incident monitor
hang hung stuck frozen unresponsive > terminate kill restart
metric measurement timeseries
monitor alarm alert
maintenance maintenance_window downtime
dashboard panel
config configuration setting preference
environment env variable
health alive ping
reach reachable respond still_there still_up connection > ping health check
documentation docs handbook
mean meaning definition > explain describe documentation

# pictures of numbers
chart plot graph diagram
line trend over_time > line chart
pie share proportion > pie chart
bar column
bar > chart
distribution histogram frequency > histogram distribution
occur frequency > frequency
correlation > scatter
funnel conversion drop_out > funnel
flowchart flow_chart > flow diagram
mindmap mind_map
word_cloud tag_cloud > word cloud
"""
