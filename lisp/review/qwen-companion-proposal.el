;;; qwen-companion-proposal.el --- Proposals of a CLI and their life cycle  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A CLI proposes a new text for a file.  The proposal waits, is shown by
;; a front end, and ends exactly once: accepted or rejected by the user,
;; closed by the CLI (answered in the terminal), superseded by a newer one,
;; or orphaned when the CLI goes away.  The first of these wins.
;;
;; Two invariants:
;; - The text sent with an acceptance is exactly what the review showed.
;; - No message makes a claim about a file that the file's bytes do not
;;   support.
;; `make fuzz' checks both, including line ends, the byte order mark and the
;; end of the last line.
;;
;; This file has the proposal, its text, and the calls to and from the
;; Python process.  qwen-companion-review.el shows proposals; it learns of
;; them by the hooks here.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-disk)
(require 'qwen-companion-drafts)
(require 'qwen-companion-merge)
(require 'qwen-companion-messages)
(require 'qwen-companion-options)
(require 'qwen-companion-places)
(require 'qwen-companion-rescue)
(require 'qwen-companion-risks)
(require 'qwen-companion-roots)
(require 'qwen-companion-spool)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

;;; The proposal

(cl-defstruct (qwen-companion-proposal
               (:copier nil)
               (:constructor qwen-companion-proposal--make))
  "A new text for a file, proposed by a CLI.

Identity:
ID is a string, the key of the proposal in the Python process.
SESSION is the id of the session that proposed it, LABEL the name of
that CLI; see `qwen-companion-proposal-client'.  PATH is the absolute
name of the file.  HELD is non-nil when a hook of the CLI waits for the
outcome; the CLI identifies other proposals by their file.  ARRIVED is
the time of arrival, in seconds since the epoch.
ANSWER is nil when a CLI waits for the outcome; else it is a function to
call with it, see `qwen-companion-proposal-begin'.  CHAT is the buffer of
the chat that asks to approve a plan, or nil.
KIND is `file', or for a request by a hook about the project DIRECTORY
`plan' or `question'.  An approved plan is saved in PATH.  A question has
QUESTIONS, and its accepted text is the answers.

State:
STATE is `pending', `shown', `accepted', `rejected', `closed',
`superseded' or `orphaned'.  SEEN is non-nil once it has been shown.
EDITED is non-nil when it ended with edits of the user.
RELEASED is `asked' when the terminal asks about a plan or questions too,
and `left' when only the terminal accepts the answer.  REASON is a message
to the CLI with the outcome, or nil; MODE is the CLI's approval mode after
a plan, a symbol, or nil for the previous one.

Text:
BUFFER holds the proposed text with the user's edits; an acceptance
sends this text, in every front end.  DIGEST is the digest of the text as
proposed, see `qwen-companion-disk-digest'; EMPTY is non-nil when that
text was empty.  LINE-END ends a line of the text: \"\\n\" or \"\\r\\n\".
BOM is its byte order mark, or \"\".  PROPOSED is (LINE-END . BOM) as
proposed.  ENDS-LINES is non-nil when the CLI may add a newline at the
end of its text.

The file:
STAMP is the file's state known to the review, see
`qwen-companion-disk-stamp'; CHECKED is the last state that the user saw
or was warned of.  ORIGIN is (STAMP . TEXT): the state and text of the
file before the proposed change, see `qwen-companion-proposal-read-file'.
ON-DISK is (LINE-END . BOM) of the file: LINE-END may also be
`mixed' or nil, see `qwen-companion-disk-line-end', and BOM is nil where
it cannot be compared.  AS-ON-DISK is non-nil when the user has chosen
to keep these.  EXACT is non-nil when lines end in different ways on one
side: both buffers then hold carriage returns as text.  REAL and WARNING
are from `qwen-companion-risks-examine'.  LOSSY is non-nil when the text
has U+FFFD where the CLI could not decode the file.  WATCH is the watch
on the file's directory while DISK-BUFFER is alive.

The review:
DISK-BUFFER holds the text on disk once the proposal is shown; for a plan
it holds EARLIER, the last refused plan of the CLI, or nil.  UNSAVED
is the buffer with the user's unsaved text of the file, or nil;
UNSAVED-COPY holds a copy of that text while it is part of the review.
NOTE is a warning for the header line, or nil.  HIDDEN is (TICKS
. WARNING), the warning of hidden characters when the texts had these
ticks, or nil.  STYLE is the front end, VIEW
is private to it.  DIFFERENCE is a `qwen-companion-hunks', kept while
VIEW comes and goes.

The CLI's write, after an answer:
WRITE is the expected write, see `qwen-companion-disk-expect'.  BASE is
the text on disk before it.  FORECAST is the text the file will hold
after it, `asked' while that is being computed, or `unknown'.  When
FORECAST is known, BASE is the text that it replaces.  Both have LF line
ends and no byte order mark.  A plan is not written; its BASE is the text
as the CLI proposed it."
  id session label path held (arrived (float-time)) answer chat
  (kind 'file) directory questions
  (state 'pending) seen edited released reason mode
  buffer digest empty (line-end "\n") (bom "") proposed ends-lines
  stamp checked origin on-disk as-on-disk exact real warning lossy watch
  disk-buffer earlier unsaved unsaved-copy note hidden style view difference
  write base forecast)

(defvar qwen-companion-proposal--open nil
  "The open proposals, oldest first.")

(defvar qwen-companion-proposal--undelivered nil
  "Outcomes the CLI has not received yet, newest first.
Each is (PROPOSAL . TEXT); the outcome is the state of PROPOSAL, and TEXT
is as in `qwen-companion-proposal-decide'.")

(defvar qwen-companion-proposal--awaiting-write nil
  "Ended proposals whose CLI may be about to write, oldest first.")

(defvar qwen-companion-proposal-changed-hook nil
  "Hook run when the open proposals or the state of one have changed.")

(defvar qwen-companion-proposal-begun-functions nil
  "Abnormal hook run with each new proposal.")

(defvar qwen-companion-proposal-rival-functions nil
  "Abnormal hook to find another CLI that has changed the file of a proposal.
Each function gets the proposal and returns the name of that CLI, or nil.")

(defvar qwen-companion-proposal-ended-functions nil
  "Abnormal hook run when a proposal has ended.
Each function gets the proposal, the state it was in before, `pending'
or `shown', and non-nil when it was the CLI that ended it.")

(defvar qwen-companion-proposal-miswritten-functions nil
  "Abnormal hook run when a file lacks the text accepted for it.
Each function gets the buffer with the accepted text.")

(defvar qwen-companion-proposal-reason-function #'ignore
  "Function that returns a message for the CLI with an outcome, or nil.
It gets the proposal, a plan or questions, and the outcome.")

(defvar-local qwen-companion-proposal-current nil
  "The proposal that the current buffer belongs to, or nil.")

(defun qwen-companion-proposals ()
  "Return the open proposals, oldest first."
  qwen-companion-proposal--open)

(defun qwen-companion-proposal-open-p (proposal)
  "Return non-nil when PROPOSAL is open: it has no answer yet."
  (memq proposal qwen-companion-proposal--open))

(defun qwen-companion-proposal-client (proposal)
  "Return the name of the CLI of PROPOSAL, unique among the connected CLIs."
  (qwen-companion-terminal-cli-name (qwen-companion-proposal-session proposal)
                                    (qwen-companion-proposal-label proposal)))

(defun qwen-companion-proposal-edited-p (proposal)
  "Return non-nil when the user has edited PROPOSAL."
  (or (buffer-modified-p (qwen-companion-proposal-buffer proposal))
      (qwen-companion-proposal-as-on-disk proposal)))

(defun qwen-companion-proposal-by-id (id)
  "Return the open proposal ID, or nil."
  (cl-find id qwen-companion-proposal--open
           :key #'qwen-companion-proposal-id :test #'equal))

(defun qwen-companion-proposals-of-file (path)
  "Return the open proposals for the file PATH, of all sessions."
  (let ((truename (file-truename path)))
    (cl-remove truename qwen-companion-proposal--open :test-not #'equal
               :key (lambda (proposal)
                      (file-truename (qwen-companion-proposal-path proposal))))))

(defun qwen-companion-proposals-of-others (proposal)
  "Return the open proposals of other CLIs for the file of PROPOSAL, oldest first."
  (cl-remove (qwen-companion-proposal-session proposal)
             (qwen-companion-proposals-of-file (qwen-companion-proposal-path proposal))
             :key #'qwen-companion-proposal-session :test #'equal))

(defun qwen-companion-proposal-display-path (proposal)
  "Return the file name of PROPOSAL, or what it is about, safe to display."
  (if (qwen-companion-proposal-file-p proposal)
      (qwen-companion-untrusted-path (qwen-companion-proposal-path proposal))
    (format "the %s of %s"
            (if (eq 'plan (qwen-companion-proposal-kind proposal)) "plan" "questions")
            (qwen-companion-untrusted-text
             (qwen-companion-places-last-part (qwen-companion-proposal-directory proposal))))))

(defun qwen-companion-proposal--name (proposal)
  "Return the name of the file of PROPOSAL, or what it is about, for a buffer."
  (let ((name (qwen-companion-proposal-display-path proposal)))
    (if (qwen-companion-proposal-file-p proposal)
        (file-name-nondirectory name)
      (string-remove-prefix "the " name))))

(defun qwen-companion-proposal-file-p (proposal)
  "Return non-nil when PROPOSAL is a text for a file, not a plan or questions."
  (eq 'file (qwen-companion-proposal-kind proposal)))

(defun qwen-companion-proposal-summary (proposal)
  "Describe the request of the CLI of PROPOSAL, in words after its name."
  (pcase (qwen-companion-proposal-kind proposal)
    ('file (format "proposes a change of %s" (qwen-companion-proposal-display-path proposal)))
    ('plan (format "asks you to approve %s" (qwen-companion-proposal-display-path proposal)))
    (_ (format "asks: %s"
               (qwen-companion-untrusted-line
                (qwen-companion-untrusted-cut
                 (qwen-companion-asked-question-text
                  (car (qwen-companion-proposal-questions proposal)))))))))

;;; Its text

(defun qwen-companion-proposal-make-buffer (proposal kind)
  "Return a new buffer that belongs to PROPOSAL.
KIND, a string, is part of the buffer's name."
  (let* ((path (qwen-companion-proposal-path proposal))
         (directory (qwen-companion-proposal-directory proposal))
         (buffer (generate-new-buffer
                  (format "*qwen-companion %s: %s*"
                          kind (qwen-companion-proposal--name proposal)))))
    (with-current-buffer buffer
      (setq default-directory
            (cond ((and directory (not (qwen-companion-places-remote-p directory)))
                   (file-name-as-directory directory))
                  ;; It appears unasked, and all in a remote directory may wait.
                  (directory temporary-file-directory)
                  ((equal path (qwen-companion-places-name path))
                   (file-name-directory path))
                  ;; Not the copy's directory: its `.dir-locals.el' is untrusted.
                  (t (file-name-directory
                      (directory-file-name (file-name-directory path)))))
            qwen-companion-proposal-current proposal)
      (setq-local buffer-auto-save-file-name nil))
    buffer))

(defun qwen-companion-proposal--fill (proposal payload)
  "Make the buffer of PROPOSAL and insert the text in PAYLOAD."
  (let ((buffer (qwen-companion-proposal-make-buffer proposal "proposal")))
    (setf (qwen-companion-proposal-buffer proposal) buffer)
    (with-current-buffer buffer
      (buffer-disable-undo)
      (let ((converted (qwen-companion-spool-insert payload t)))
        (goto-char (point-min))
        (when (looking-at-p "\ufeff")
          (delete-char 1)
          (setf (qwen-companion-proposal-bom proposal) "\ufeff"))
        (setf (qwen-companion-proposal-empty proposal) (zerop (buffer-size))
              (qwen-companion-proposal-proposed proposal)
              (cons (if converted "\r\n" (qwen-companion-disk-line-end))
                    (qwen-companion-proposal-bom proposal)))
        (if converted
            (setf (qwen-companion-proposal-line-end proposal) "\r\n")
          (when (equal "\r\n" (car (qwen-companion-proposal-proposed proposal)))
            (qwen-companion-proposal--hide-carriage-returns proposal))))
      (goto-char (point-min))
      (buffer-enable-undo)
      (set-buffer-modified-p nil)
      (qwen-companion-proposal-protect-draft proposal))))

(defun qwen-companion-proposal-protect-draft (proposal)
  "Protect the text of PROPOSAL, in this buffer, once it is edited.
Emacs auto-saves it, and asks about it before exiting."
  (setq buffer-offer-save t)
  (if (qwen-companion-proposal-file-p proposal)
      (qwen-companion-drafts-keep
       'file (qwen-companion-places-name (qwen-companion-proposal-path proposal)))
    (qwen-companion-drafts-keep 'prompt (qwen-companion-proposal-directory proposal))))

(defun qwen-companion-proposal-text (proposal)
  "Return the text of PROPOSAL with the user's edits, as the CLI will receive it."
  (qwen-companion-proposal--cli-text
   proposal (qwen-companion-proposal-buffer-text proposal)))

;; An accepted text is stored as in its buffer, and the Python process
;; converts its line ends: for 20 MB, Emacs would need 0.3 s.

(defun qwen-companion-proposal-buffer-text (proposal)
  "Return the text of PROPOSAL with the user's edits, as its buffer has it.
Its lines end in LF where the proposal's line end is CR LF, and it has no
byte order mark."
  (qwen-companion-disk-text (qwen-companion-proposal-buffer proposal) "\n"))

(defun qwen-companion-proposal--cli-text (proposal text)
  "Return TEXT, from the buffer of PROPOSAL, as the CLI will receive it."
  (qwen-companion-proposal--add-mark
   proposal (qwen-companion-disk-set-line-ends
             text (qwen-companion-proposal-line-end proposal))))

(defun qwen-companion-proposal--add-mark (proposal text)
  "Return TEXT of PROPOSAL with the byte order mark it has for the CLI."
  (cond ((and (string-empty-p text)
              (or (not (qwen-companion-proposal-empty proposal))
                  (qwen-companion-proposal--empty-p proposal)))
         "")
        ;; Copying 20 MB takes 50 ms.
        ((string-empty-p (qwen-companion-proposal-bom proposal)) text)
        (t (concat (qwen-companion-proposal-bom proposal) text))))

(defun qwen-companion-proposal--text-to-find (proposal text)
  "Return TEXT, from the buffer of PROPOSAL, in the form to search in its file."
  ;; The search ignores line ends, but not carriage returns within the text.
  (if (string-search "\r" text)
      (qwen-companion-proposal--cli-text proposal text)
    text))

(defun qwen-companion-proposal--pack (proposal text)
  "Return TEXT of the buffer of PROPOSAL as part of a payload for the CLI."
  (qwen-companion-spool-pack (qwen-companion-proposal--add-mark proposal text)
                             (qwen-companion-proposal-line-end proposal)))

(defun qwen-companion-proposal--recreate-buffer (proposal text)
  "Make a new buffer for PROPOSAL, whose buffer was killed with TEXT in it."
  (let ((buffer (qwen-companion-proposal-make-buffer proposal "proposal")))
    (setf (qwen-companion-proposal-buffer proposal) buffer)
    (with-current-buffer buffer
      (insert text)
      (set-buffer-modified-p (qwen-companion-proposal-edited proposal))
      (qwen-companion-proposal-protect-draft proposal))))

(defun qwen-companion-proposal--plain-text (text)
  "Return TEXT with LF line ends and no byte order mark."
  (qwen-companion-disk-unix-text (string-remove-prefix "\ufeff" text)))

(defun qwen-companion-proposal--disk-text (path)
  "Return the decoded text of the file PATH, with LF line ends."
  (with-temp-buffer
    (qwen-companion-disk-insert path (qwen-companion-disk-named-coding path))
    (qwen-companion-proposal--plain-text (buffer-string))))

(defun qwen-companion-proposal-read-file (proposal)
  "Return (STAMP . TEXT) of the file of PROPOSAL as it is on disk now.
STAMP is from `qwen-companion-disk-stamp'.  TEXT has the line ends of the
file and no byte order mark.  It is empty when there is no file, and nil
when it cannot be read or PROPOSAL is not about a file."
  (let ((path (qwen-companion-proposal-path proposal)))
    ;; The stamp first, so that a write during the reading is noticed.
    (cons (qwen-companion-disk-stamp path)
          (and (qwen-companion-proposal-file-p proposal)
               (ignore-error file-error
                 (with-temp-buffer
                   (qwen-companion-disk-insert path (qwen-companion-disk-named-coding path) t)
                   (string-remove-prefix "\ufeff" (buffer-string))))))))

;;; Line ends and the byte order mark

(defun qwen-companion-proposal--hide-carriage-returns (proposal)
  "If all lines of PROPOSAL end in CR LF, convert its buffer to LF."
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (when (equal "\r\n" (qwen-companion-disk-line-end))
      (qwen-companion-disk-convert-line-ends "\n")
      (setf (qwen-companion-proposal-line-end proposal) "\r\n"))))

(defun qwen-companion-proposal--show-carriage-returns (proposal)
  "Convert the buffer of PROPOSAL from LF back to CR LF, if it was converted."
  (when (equal "\r\n" (qwen-companion-proposal-line-end proposal))
    (with-current-buffer (qwen-companion-proposal-buffer proposal)
      (qwen-companion-disk-convert-line-ends "\r\n"))
    (setf (qwen-companion-proposal-line-end proposal) "\n"
          ;; The recorded difference is about the previous line ends.
          (qwen-companion-proposal-difference proposal) nil)))

(defun qwen-companion-proposal-align-line-ends (proposal disk bom)
  "Make the current buffer, the disk side of PROPOSAL, comparable with it.
DISK is the line end of the file, see `qwen-companion-disk-line-end'; if
that is CR LF throughout, the buffer has LF.  BOM is the file's byte order
mark, \"\" for none, or nil if it cannot be compared.

Usually both buffers get LF line ends, and a change from one style to
the other is a single change, see
`qwen-companion-proposal-line-end-summary'.  If one side mixes styles,
both buffers hold carriage returns as text, so that each line can be
dropped by itself."
  (let* ((proposed (car (qwen-companion-proposal-proposed proposal)))
         (exact (or (eq disk 'mixed)
                    (eq proposed 'mixed)
                    ;; Some were dropped while both sides showed carriage returns.
                    (and (qwen-companion-proposal-exact proposal)
                         (not (equal proposed
                                     (with-current-buffer (qwen-companion-proposal-buffer proposal)
                                       (qwen-companion-disk-line-end))))))))
    (cond
     (exact
      (qwen-companion-proposal--show-carriage-returns proposal)
      (when (equal disk "\r\n")
        (qwen-companion-disk-convert-line-ends "\r\n")))
     ((qwen-companion-proposal-exact proposal)
      (qwen-companion-proposal--hide-carriage-returns proposal)))
    (setf (qwen-companion-proposal-exact proposal) exact
          (qwen-companion-proposal-on-disk proposal)
          (and (or (> (buffer-size) 0) bom)
               (cons disk bom)))
    (qwen-companion-proposal-set-line-ends
     proposal (qwen-companion-proposal-as-on-disk proposal))))

(defun qwen-companion-proposal--line-end-changes (proposal)
  "Return where line ends and byte order mark of PROPOSAL differ from the disk.
A list of (WHAT PROPOSED ON-DISK), strings for the user."
  (pcase-let ((`(,line-end . ,bom) (qwen-companion-proposal-proposed proposal))
              (`(,disk-line-end . ,disk-bom) (qwen-companion-proposal-on-disk proposal)))
    (cl-flet ((name (end) (if (equal end "\n") "LF" "CR LF")))
      (append
       (when (and line-end disk-line-end
                  (not (qwen-companion-proposal-exact proposal))
                  (not (equal line-end disk-line-end)))
         (list (list "line ends" (format "%s proposed" (name line-end))
                     (format "%s on disk" (name disk-line-end)))))
       (when (and disk-bom (not (equal bom disk-bom))
                  (not (qwen-companion-proposal--empty-p proposal)))
         (list (if (string-empty-p bom)
                   '("byte order mark" "not proposed" "on disk")
                 '("byte order mark" "proposed" "not on disk"))))))))

(defun qwen-companion-proposal--empty-p (proposal)
  "Return non-nil when PROPOSAL was empty, without a byte order mark."
  (and (qwen-companion-proposal-empty proposal)
       (string-empty-p (cdr (qwen-companion-proposal-proposed proposal)))))

(defun qwen-companion-proposal-line-end-summary (proposal)
  "Describe the line ends and byte order mark of PROPOSAL if they are new.
Return nil if the file on disk has the same.  They count as a single
change, which the user can drop."
  (when-let* ((changes (qwen-companion-proposal--line-end-changes proposal)))
    (if (qwen-companion-proposal-as-on-disk proposal)
        (concat (mapconcat #'car changes " and ") " as on disk")
      (mapconcat (pcase-lambda (`(,what ,proposed ,disk))
                   (format "%s: %s, %s" what proposed disk))
                 changes "; "))))

(defun qwen-companion-proposal-set-line-ends (proposal as-on-disk)
  "Set the line ends and byte order mark of PROPOSAL.
If AS-ON-DISK is non-nil, use those on disk, else the proposed ones.  A
text without line ends also gets those on disk: dropping a change can add
lines to it."
  (pcase-let ((`(,line-end . ,bom) (qwen-companion-proposal-proposed proposal))
              (`(,disk-line-end . ,disk-bom) (qwen-companion-proposal-on-disk proposal)))
    (unless (qwen-companion-proposal--line-end-changes proposal)
      (setq as-on-disk nil))
    (unless (qwen-companion-proposal-exact proposal)
      (setf (qwen-companion-proposal-line-end proposal)
            (or (and as-on-disk disk-line-end) line-end disk-line-end "\n")))
    (setf (qwen-companion-proposal-bom proposal)
          (or (and (or as-on-disk (qwen-companion-proposal--empty-p proposal)) disk-bom)
              bom)
          (qwen-companion-proposal-as-on-disk proposal) as-on-disk)))

;;; The life cycle

(defun qwen-companion-proposal-requested-p (proposal)
  "Return non-nil when the user requested PROPOSAL, so it needs no announcement.
It does not open by itself either.  That holds for changes that no CLI has
proposed, and for the doctor's change, which ends at once."
  (or (and (qwen-companion-proposal-answer proposal)
           (qwen-companion-proposal-file-p proposal))
      ;; The client in qwen_companion/doctor.py, and its version.
      (string-prefix-p "qwen-companion-doctor " (qwen-companion-proposal-label proposal))))

(defun qwen-companion-proposal--from-payload (payload)
  "Return the proposal that PAYLOAD of the `proposal-open' call describes.
It has no text yet, and its file is not examined yet."
  (let ((client (qwen-companion-proposal-open-client payload)))
    (qwen-companion-proposal--make
     :id (qwen-companion-proposal-open-id payload)
     :session (qwen-companion-proposal-open-session payload)
     :label (if (string-empty-p client) "the CLI" client)
     :path (qwen-companion-proposal-open-path payload)
     :digest (qwen-companion-proposal-open-digest payload)
     :ends-lines (qwen-companion-proposal-open-ends-lines payload)
     :kind (or (qwen-companion-proposal-open-kind payload) 'file)
     :directory (qwen-companion-proposal-open-directory payload)
     :questions (qwen-companion-proposal-open-questions payload)
     :held (qwen-companion-proposal-open-held payload))))

(defun qwen-companion-proposal--refusal (proposal payload)
  "Return the reason to refuse PROPOSAL with the text in PAYLOAD, or nil."
  (let ((path (qwen-companion-proposal-path proposal)))
    (if (or (not (file-name-absolute-p path)) (qwen-companion-places-remote-p path))
        (format "Emacs only reviews local files with absolute names, not %s" path)
      (let* ((file-name-handler-alist nil)
             (size (max (qwen-companion-spool-size payload)
                        (or (file-attribute-size
                             (file-attributes (file-chase-links path)))
                            0))))
        (when (> size qwen-companion-diff-size-limit)
          (format "%s has %d bytes, more than the limit of %d (`qwen-companion-diff-size-limit').  Decide in the terminal instead"
                  path size qwen-companion-diff-size-limit))))))

(defun qwen-companion-proposal-examine (proposal)
  "Examine the risk of writing the file of PROPOSAL, which may have changed.
Return the warning if it is a new one, else nil.  For a remote file, only
its name is examined; the Python process refuses a link that leads out of
the workspace."
  (pcase-let* ((path (qwen-companion-proposal-path proposal))
               (`(,real . ,warning)
                (cond ((not (qwen-companion-proposal-file-p proposal)) nil)
                      ((equal path (qwen-companion-places-name path))
                       (qwen-companion-risks-examine path (qwen-companion-roots-published)))
                      (t (cons nil (qwen-companion-risks-run-warning
                                    (qwen-companion-places-path path))))))
               (before (qwen-companion-proposal-warning proposal)))
    (setf (qwen-companion-proposal-real proposal) real
          (qwen-companion-proposal-warning proposal) warning)
    (unless (equal warning before)
      warning)))

(defun qwen-companion-proposal--begin (proposal payload)
  "Set up PROPOSAL with the text in PAYLOAD.
Run `qwen-companion-proposal-begun-functions'."
  (let ((origin (qwen-companion-proposal-read-file proposal)))
    (setf (qwen-companion-proposal-origin proposal) origin
          (qwen-companion-proposal-stamp proposal) (car origin)
          (qwen-companion-proposal-checked proposal) (car origin))
    (qwen-companion-proposal-examine proposal))
  ;; The CLI now awaits an answer before it writes anything else.
  (dolist (earlier qwen-companion-proposal--awaiting-write)
    (when (equal (qwen-companion-proposal-session proposal)
                 (qwen-companion-proposal-session earlier))
      (qwen-companion-disk-expect-later (qwen-companion-proposal-write earlier))))
  (qwen-companion-proposal--fill proposal payload)
  (setf (qwen-companion-proposal-seen proposal)
        (qwen-companion-proposal-requested-p proposal))
  (setq qwen-companion-proposal--open
        (append qwen-companion-proposal--open (list proposal)))
  (qwen-companion-proposal--compare-with-accepted proposal)
  (run-hook-with-args 'qwen-companion-proposal-begun-functions proposal))

(cl-defun qwen-companion-proposal-begin (&key id session client path text answer chat directory)
  "Begin and return a proposal of TEXT for the file PATH, made by no CLI.
ID, SESSION and CLIENT are as in a proposal of a CLI.  It counts as seen,
so it does not open by itself.  When the user decides, call ANSWER with
the proposal, the outcome, and for an acceptance the text; if ANSWER
signals an error, the proposal stays open.  With CHAT non-nil, it is a
plan for the project DIRECTORY from the chat in that buffer, and arrives
like one of a CLI.  Signal a `user-error' if the text is too large."
  (let ((proposal (qwen-companion-proposal--make
                   :id id :session session :label client :path path
                   :kind (if chat 'plan 'file) :directory directory
                   :answer answer :chat chat))
        (payload (list :text text)))
    (when-let* ((refusal (qwen-companion-proposal--refusal proposal payload)))
      (user-error "%s" refusal))
    (qwen-companion-proposal--begin proposal payload)
    proposal))

(defun qwen-companion-proposal-withdraw (proposal reason)
  "End PROPOSAL, which no longer needs a decision.
If the user has edited its text, rescue the text for REASON, a string."
  (qwen-companion-proposal--end proposal 'closed t)
  (qwen-companion-proposal--rescue-or-kill proposal reason)
  (unless (or (qwen-companion-proposal-edited proposal)
              (and (qwen-companion-proposal-answer proposal)
                   (qwen-companion-proposal-file-p proposal)))
    (message "qwen-companion: %s: %s" (qwen-companion-proposal-display-path proposal) reason)))

(defun qwen-companion-proposal--end (proposal state &optional by-cli send)
  "End PROPOSAL in STATE.
BY-CLI non-nil means that the CLI ended it, perhaps just before the user
would have answered.  SEND is nil or a function that informs the CLI; call
it before removing the review from the screen.  The caller must rescue or
kill the proposal's buffer."
  (let ((before (qwen-companion-proposal-state proposal)))
    (setf (qwen-companion-proposal-state proposal) state
          (qwen-companion-proposal-edited proposal)
          (qwen-companion-proposal-edited-p proposal))
    (setq qwen-companion-proposal--open
          (delq proposal qwen-companion-proposal--open))
    (unwind-protect
        (when send (funcall send))
      (run-hook-with-args 'qwen-companion-proposal-ended-functions
                          proposal before by-cli))))

(defun qwen-companion-proposal-decide (proposal outcome &optional text)
  "End PROPOSAL with the user's OUTCOME and send that to the CLI.
OUTCOME is `accepted', with the accepted TEXT, or `rejected'.  TEXT is
from `qwen-companion-proposal-buffer-text'."
  (let ((answer (qwen-companion-proposal-answer proposal))
        ;; Saved here: an undelivered acceptance is rescued in another buffer.
        (buffer (qwen-companion-proposal-buffer proposal)))
    (when (or (not (qwen-companion-proposal-file-p proposal))
              (and (qwen-companion-proposal-held proposal) (eq outcome 'rejected)))
      (setf (qwen-companion-proposal-reason proposal)
            (or (qwen-companion-proposal-reason proposal)
                (funcall qwen-companion-proposal-reason-function proposal outcome))))
    (when answer
      (funcall answer proposal outcome
               (and text (qwen-companion-proposal--cli-text proposal text))))
    (qwen-companion-proposal--end
     proposal outcome nil
     (unless answer
       (lambda ()
         (push (cons proposal text) qwen-companion-proposal--undelivered)
         (let ((deliver (lambda ()
                          (qwen-companion-proposal--deliver
                           (car qwen-companion-proposal--undelivered)))))
           (if (and (eq outcome 'accepted) (qwen-companion-proposal-file-p proposal))
               (qwen-companion-proposal--await-write
                proposal text
                :ready deliver
                :done (apply-partially #'qwen-companion-proposal--write-ended proposal text))
             (funcall deliver))))))
    (when (eq outcome 'accepted)
      (qwen-companion-proposal--note-accepted proposal))
    (kill-buffer buffer)))

(defun qwen-companion-proposal--note-accepted (accepted)
  "Show in the other reviews of the same file that ACCEPTED was accepted."
  (dolist (other (qwen-companion-proposals-of-file
                  (qwen-companion-proposal-path accepted)))
    (setf (qwen-companion-proposal-note other)
          (format "a proposal by %s was accepted meanwhile"
                  (qwen-companion-proposal-client accepted))))
  (force-mode-line-update t))

(defun qwen-companion-proposal--supersede (newer)
  "End the open proposal of the same session and file as NEWER.
The CLI waits for the outcome of NEWER only, so an outcome that
has not reached it yet is void."
  (let ((older-p (lambda (proposal)
                   (and (equal (qwen-companion-proposal-session newer)
                               (qwen-companion-proposal-session proposal))
                        (equal (qwen-companion-proposal-path newer)
                               (qwen-companion-proposal-path proposal))
                        (not (qwen-companion-proposal-held proposal))))))
    (when-let* ((older (cl-find-if older-p qwen-companion-proposal--open)))
      (qwen-companion-proposal--end older 'superseded t)
      (qwen-companion-proposal--rescue-or-kill older "a newer proposal replaced it"))
    (when-let* ((undelivered (cl-find-if older-p qwen-companion-proposal--undelivered
                                         :key #'car)))
      (qwen-companion-proposal--discard-outcome
       undelivered "a newer proposal arrived before the CLI received your acceptance"))))

;;; Rescued texts

(defun qwen-companion-proposal--rescue (proposal reason &optional awaited)
  "Rescue the text of PROPOSAL for REASON and tell the user.
AWAITED non-nil means that the CLI may be about to write.  If the text
is on disk already, kill the buffer instead."
  (if (qwen-companion-disk-holds-p
       (qwen-companion-proposal-path proposal)
       (qwen-companion-proposal--text-to-find
        proposal (qwen-companion-proposal-buffer-text proposal)))
      (kill-buffer (qwen-companion-proposal-buffer proposal))
    (qwen-companion-rescue-adopt
     (qwen-companion-proposal-buffer proposal)
     (make-qwen-companion-rescue
      :path (qwen-companion-proposal-path proposal)
      :name (qwen-companion-proposal--name proposal)
      :reason reason
      :stamp (qwen-companion-proposal-stamp proposal)
      :digest (qwen-companion-proposal-digest proposal)
      :line-end (qwen-companion-proposal-line-end proposal)
      :ends-lines (qwen-companion-proposal-ends-lines proposal)
      :awaited awaited))))

(defun qwen-companion-proposal--rescue-or-kill (proposal reason &optional awaited)
  "Rescue the text of PROPOSAL for REASON if the user edited it; else kill it.
AWAITED is as in `qwen-companion-proposal--rescue'."
  (if (qwen-companion-proposal-edited proposal)
      (qwen-companion-proposal--rescue proposal reason awaited)
    (kill-buffer (qwen-companion-proposal-buffer proposal))))

(defun qwen-companion-proposal--rescue-orphan (proposal reason)
  "Rescue the text of PROPOSAL for REASON, or if nil, because its session ended."
  (qwen-companion-proposal--rescue
   proposal
   (or reason
       (format "%s disconnected before it could write %s"
               (qwen-companion-proposal-client proposal)
               (qwen-companion-proposal-display-path proposal)))))

;;; The CLI's writes

;; A CLI may ask about several changes before it makes the first one.  All
;; are computed from the text on disk, and some CLIs apply them one by one by
;; replacing strings.  So an accepted text may never be on disk unchanged;
;; the expected text is computed here.  The time limit for a write starts
;; when the CLI awaits no more answers.

(cl-defun qwen-companion-proposal--await-write (proposal text &key optional stamp ready done)
  "Expect the CLI of PROPOSAL to write TEXT, the former text of its buffer.
TEXT is nil if unknown.  OPTIONAL, STAMP, READY and DONE are as in
`qwen-companion-disk-expect'; READY gets no arguments, and DONE is called
when the wait for PROPOSAL ends."
  (let* ((path (qwen-companion-proposal-path proposal))
         (earlier (qwen-companion-proposal--awaited-for path))
         (text (and text (qwen-companion-proposal--text-to-find proposal text))))
    (setf (qwen-companion-proposal-forecast proposal)
          (cond ((null text) 'unknown)
                ((null earlier) (qwen-companion-proposal--plain-text text)))
          (qwen-companion-proposal-base proposal)
          (and earlier (qwen-companion-proposal--disk-text path)))
    (qwen-companion-disk-expect
     path text :optional optional :stamp stamp
     :ready (lambda (write)
              (setf (qwen-companion-proposal-write proposal) write)
              (setq qwen-companion-proposal--awaiting-write
                    (append qwen-companion-proposal--awaiting-write (list proposal)))
              (when (and text (qwen-companion-proposal-ends-lines proposal))
                (qwen-companion-disk-allow write (qwen-companion-disk-end-line text)))
              (when ready (funcall ready)))
     :done (lambda (result how)
             (unwind-protect
                 (when done (funcall done result how))
               (qwen-companion-proposal--forget-write proposal))))
    (qwen-companion-proposal--update-forecasts path)))

(defun qwen-companion-proposal--awaited-for (path)
  "Return the proposals for PATH that wait for a write, oldest first."
  (cl-remove path qwen-companion-proposal--awaiting-write
             :key #'qwen-companion-proposal-path :test-not #'equal))

(defun qwen-companion-proposal-unwritten-before (proposal)
  "Return the accepted proposals that precede PROPOSAL in the same file.
Its CLI writes them before it."
  (cl-remove-if-not
   (lambda (earlier)
     (and (eq (qwen-companion-proposal-state earlier) 'accepted)
          (equal (qwen-companion-proposal-session proposal)
                 (qwen-companion-proposal-session earlier))
          (qwen-companion-disk-untouched-p (qwen-companion-proposal-write earlier))))
   (qwen-companion-proposal--awaited-for (qwen-companion-proposal-path proposal))))

(defun qwen-companion-proposal-earlier-text-of-others (proposal)
  "Return another CLI's earlier text for the file of PROPOSAL, or nil.
The value is (CLIENT . TEXT): the newest text, with LF line ends, among
earlier proposals that are pending, or accepted and not written yet.
Return nil also if line ends differ within a text."
  (let* ((accepted (cl-remove-if-not
                    (lambda (other)
                      (and (eq (qwen-companion-proposal-state other) 'accepted)
                           (stringp (qwen-companion-proposal-forecast other))
                           (not (equal (qwen-companion-proposal-session other)
                                       (qwen-companion-proposal-session proposal)))
                           (qwen-companion-disk-untouched-p (qwen-companion-proposal-write other))))
                    (qwen-companion-proposal--awaited-for (qwen-companion-proposal-path proposal))))
         (other (cl-find-if
                 (lambda (other)
                   (< (qwen-companion-proposal-arrived other)
                      (qwen-companion-proposal-arrived proposal)))
                 (reverse (append accepted (qwen-companion-proposals-of-others proposal))))))
    (when (and other
               (not (qwen-companion-proposal-exact other))
               (not (qwen-companion-proposal-exact proposal)))
      (cons (qwen-companion-proposal-client other)
            (if (memq other accepted)
                (qwen-companion-proposal-forecast other)
              (qwen-companion-proposal--plain-text
               (qwen-companion-proposal-buffer-text other)))))))

(defun qwen-companion-proposal--forget-write (proposal)
  "Stop waiting for the CLI of PROPOSAL to write."
  (setq qwen-companion-proposal--awaiting-write
        (delq proposal qwen-companion-proposal--awaiting-write))
  (qwen-companion-disk-forget (qwen-companion-proposal-write proposal))
  (setf (qwen-companion-proposal-write proposal) nil
        (qwen-companion-proposal-base proposal) nil))

(defun qwen-companion-proposal--update-forecasts (path)
  "Compute the contents of PATH after each awaited write."
  (let ((rest (qwen-companion-proposal--awaited-for path)) previous)
    (while rest
      (let* ((proposal (pop rest))
             (mine (and previous (qwen-companion-proposal-forecast previous))))
        (cond
         ((qwen-companion-proposal-forecast proposal))
         ((stringp mine)
          (qwen-companion-proposal--forecast proposal mine))
         ((eq mine 'unknown)
          (setf (qwen-companion-proposal-forecast proposal) 'unknown)))
        (setq previous proposal)))))

(defun qwen-companion-proposal--forecast (proposal mine)
  "Compute the forecast of PROPOSAL, assuming that MINE is written before it."
  (let* ((write (qwen-companion-proposal-write proposal))
         (path (qwen-companion-proposal-path proposal))
         (theirs (qwen-companion-proposal--plain-text (qwen-companion-disk-accepted write))))
    (setf (qwen-companion-proposal-forecast proposal) 'asked)
    (qwen-companion-merge-texts
     (qwen-companion-proposal-base proposal) mine theirs nil
     (lambda (merged)
       (let ((text (and merged (or (qwen-companion-merge-result-text merged) theirs))))
         (setf (qwen-companion-proposal-forecast proposal) (or text 'unknown)
               (qwen-companion-proposal-base proposal) mine)
         (when text
           (qwen-companion-disk-allow write text)
           (when (qwen-companion-proposal-ends-lines proposal)
             (qwen-companion-disk-allow write (qwen-companion-disk-end-line text))))
         (qwen-companion-proposal--update-forecasts path)
         (dolist (open (qwen-companion-proposals-of-file path))
           (unless (qwen-companion-proposal-note open)
             (qwen-companion-proposal--compare-with-accepted open))))))))

(defun qwen-companion-proposal--compare-with-accepted (proposal)
  "Warn in the review of PROPOSAL if it lacks text accepted before.
Only accepted changes that its CLI has not written yet count."
  (when-let* ((earlier (qwen-companion-proposal-unwritten-before proposal))
              (mine (qwen-companion-proposal-forecast (car (last earlier))))
              ((stringp mine)))
    (let ((theirs (qwen-companion-proposal--plain-text (qwen-companion-proposal-text proposal))))
      (qwen-companion-merge-texts
       (qwen-companion-proposal--disk-text (qwen-companion-proposal-path proposal))
       mine theirs nil
       (lambda (merged)
         (unless (equal theirs (and merged (or (qwen-companion-merge-result-text merged) theirs)))
           (setf (qwen-companion-proposal-note proposal)
                 (concat "lacks accepted changes"
                         (when (cl-some #'qwen-companion-proposal-edited earlier)
                           (format ", and %s may fail to write it where you edited them"
                                   (qwen-companion-proposal-client proposal)))))
           (force-mode-line-update t)))))))

(defun qwen-companion-proposal--start-write-timeout (session)
  "Start the time limit for the writes of SESSION, unless it awaits answers."
  (let ((of-session-p (lambda (proposal)
                        (equal session (qwen-companion-proposal-session proposal)))))
    (unless (or (cl-some of-session-p qwen-companion-proposal--open)
                (cl-some of-session-p (mapcar #'car qwen-companion-proposal--undelivered)))
      (dolist (proposal (cl-remove-if-not of-session-p qwen-companion-proposal--awaiting-write))
        (qwen-companion-disk-expect-soon (qwen-companion-proposal-write proposal))))))

(defun qwen-companion-proposal--write-ended (proposal text result how)
  "Rescue TEXT, accepted for PROPOSAL, if it is not on disk.
RESULT and HOW are as in `qwen-companion-disk-expect'."
  (pcase result
    ('overwritten
     (when (qwen-companion-proposal-edited proposal)
       (qwen-companion-proposal--rescue-text
        proposal text "a change accepted later replaced it and your edits")))
    ('changed (qwen-companion-proposal--rescue-changed proposal text))
    ('unchanged
     (qwen-companion-proposal--rescue-text
      proposal text (format "%s has not written %s %s"
                            (qwen-companion-untrusted-text
                             (qwen-companion-proposal-client proposal))
                            (qwen-companion-proposal-display-path proposal) how))
     (when (buffer-live-p (qwen-companion-proposal-buffer proposal))
       (qwen-companion-rescue-expect-late-write (qwen-companion-proposal-buffer proposal))))))

(defun qwen-companion-proposal--rescue-changed (proposal text)
  "Rescue TEXT, accepted for PROPOSAL, because its file has another text.
If the file holds the change accepted before, rescue both changes together."
  (let* ((path (qwen-companion-proposal-path proposal))
         (file (qwen-companion-proposal-display-path proposal))
         (base (qwen-companion-proposal-base proposal))
         (forecast (qwen-companion-proposal-forecast proposal)))
    ;; `qwen-companion-kept-apply' replaces the text that is there instead.
    (setf (qwen-companion-proposal-stamp proposal) (qwen-companion-disk-stamp path))
    (if (and base (stringp forecast) (qwen-companion-disk-holds-p path base))
        (qwen-companion-proposal--rescue-text
         proposal forecast
         (format "%s has the change accepted before, but not this one" file))
      (qwen-companion-proposal--rescue-text
       proposal text (format "%s does not have the accepted text" file))
      (when (buffer-live-p (qwen-companion-proposal-buffer proposal))
        (run-hook-with-args 'qwen-companion-proposal-miswritten-functions
                            (qwen-companion-proposal-buffer proposal))))))

(defun qwen-companion-proposal-rescue-accepted (proposal text reason)
  "Rescue TEXT, accepted for PROPOSAL, whose buffer was killed, for REASON.
TEXT is as passed to the answer function of PROPOSAL."
  (qwen-companion-proposal--rescue-text
   proposal
   (string-replace (qwen-companion-proposal-line-end proposal) "\n"
                   (string-remove-prefix (qwen-companion-proposal-bom proposal) text))
   reason))

(defun qwen-companion-proposal--rescue-text (proposal text reason)
  "Rescue TEXT of PROPOSAL, whose buffer was killed with it, for REASON."
  (qwen-companion-proposal--recreate-buffer proposal text)
  (qwen-companion-proposal--rescue proposal reason))

;;; Outcomes on their way to the CLI

(defun qwen-companion-proposal--deliver (undelivered)
  "Send the outcome UNDELIVERED, (PROPOSAL . TEXT), to the Python process."
  (pcase-let ((`(,proposal . ,text) undelivered))
    (qwen-companion-backend-call
     'outcome
     (append (list :id (qwen-companion-proposal-id proposal)
                   :outcome (qwen-companion-proposal-state proposal))
             (when-let* ((reason (qwen-companion-proposal-reason proposal)))
               (list :reason (qwen-companion-spool-pack reason)))
             (when-let* ((mode (qwen-companion-proposal-mode proposal)))
               (list :mode mode))
             (when text (qwen-companion-proposal--pack proposal text))))))

(defconst qwen-companion-proposal--redeliver-delay 2
  "Seconds before an outcome is sent again after a failure.")

(defvar qwen-companion-proposal--redeliver-timer nil
  "Timer that sends outcomes again, or nil.")

(defun qwen-companion-proposal-on-call-failed (method _payload)
  "If METHOD is `outcome', schedule that the outcomes are sent again.
The Python process may have been unable to read the text, for instance."
  (when (and (eq method 'outcome) (not qwen-companion-proposal--redeliver-timer))
    (setq qwen-companion-proposal--redeliver-timer
          (run-at-time qwen-companion-proposal--redeliver-delay nil
                       #'qwen-companion-proposal-resend))))

(defun qwen-companion-proposal-resend ()
  "Send all outcomes to a Python process that may lack them."
  (setq qwen-companion-proposal--redeliver-timer nil)
  (mapc #'qwen-companion-proposal--deliver
        (reverse qwen-companion-proposal--undelivered)))

(defun qwen-companion-proposal-snapshot ()
  "Return the open proposals, for a Python process about to start.
A list of property lists (:id :session :path :digest).  Include proposals
whose outcome is not delivered, which are open for the Python process.
Exclude those that no CLI has made."
  (mapcar (lambda (proposal)
            (let* ((path (qwen-companion-proposal-path proposal))
                   (session (qwen-companion-proposal-session proposal))
                   (place (qwen-companion-session-place (qwen-companion-backend-session session))))
              (list :id (qwen-companion-proposal-id proposal)
                    :session session
                    :path (or (and place (qwen-companion-places-shared-path path place))
                              (qwen-companion-places-path path))
                    :digest (qwen-companion-proposal-digest proposal))))
          (append (mapcar #'car qwen-companion-proposal--undelivered)
                  (cl-remove-if #'qwen-companion-proposal-answer
                                qwen-companion-proposal--open))))

(defun qwen-companion-proposal--undelivered-by-id (id)
  "Return the undelivered outcome of the proposal ID, or nil."
  (cl-find id qwen-companion-proposal--undelivered :test #'equal
           :key (lambda (undelivered)
                  (qwen-companion-proposal-id (car undelivered)))))

(defun qwen-companion-proposal-decided (id)
  "Return the proposal ID if its outcome is on its way to the CLI, or nil."
  (car (qwen-companion-proposal--undelivered-by-id id)))

(defun qwen-companion-proposal--discard-outcome (undelivered reason)
  "Discard UNDELIVERED, an outcome that is too late, and close its proposal.
If it is an acceptance with edits, rescue its text for REASON.  Return
the text, or nil for a rejection."
  (pcase-let ((`(,proposal . ,text) undelivered))
    (setq qwen-companion-proposal--undelivered
          (delq undelivered qwen-companion-proposal--undelivered))
    (setf (qwen-companion-proposal-state proposal) 'closed)
    (when text
      (when (qwen-companion-proposal-write proposal)
        (qwen-companion-proposal--forget-write proposal))
      (when (qwen-companion-proposal-edited proposal)
        (qwen-companion-proposal--rescue-text proposal text reason)))
    text))

;;; Calls of the Python process

(defun qwen-companion-proposal-on-open (payload)
  "Handle the `proposal-open' call: begin the proposal in PAYLOAD.
Return nil, or the reason to refuse it, a string.  If the proposal is
known already, keep its review."
  (let* ((proposal (qwen-companion-proposal--from-payload payload))
         (id (qwen-companion-proposal-id proposal))
         (original (qwen-companion-proposal-open-copy-of payload)))
    (when (and original (qwen-companion-places-of original))
      (qwen-companion-places-copy (qwen-companion-proposal-path proposal) original))
    (cond
     ((and original (not (qwen-companion-places-of original)))
      (qwen-companion-spool-drop payload)
      (format "Emacs does not serve the host of %s" original))
     ((or (qwen-companion-proposal-by-id id)
          (qwen-companion-proposal--undelivered-by-id id))
      (qwen-companion-spool-drop payload)
      nil)
     (t
      ;; A proposal of a waiting hook ends by itself; a newer one does not replace it.
      (unless (qwen-companion-proposal-held proposal)
        (qwen-companion-proposal--supersede proposal))
      (if-let* ((refusal (qwen-companion-proposal--refusal proposal payload)))
          (progn (qwen-companion-spool-drop payload)
                 refusal)
        (qwen-companion-proposal--begin proposal payload)
        nil)))))

(defun qwen-companion-proposal-on-close (payload)
  "Handle the `proposal-close' call: PAYLOAD names a proposal answered elsewhere.
Return its text as a payload, or nil when it was not open or has just
been rejected in Emacs."
  (let* ((id (qwen-companion-proposal-close-id payload))
         (undelivered (qwen-companion-proposal--undelivered-by-id id))
         (proposal (or (car undelivered) (qwen-companion-proposal-by-id id))))
    (when proposal
      (let* ((reason (if (qwen-companion-proposal-close-keeps-edits payload)
                         "answered in the terminal"
                       (format "answered in the terminal, where %s writes its own text without your edits"
                               (qwen-companion-proposal-client proposal))))
             (text (if undelivered
                       (qwen-companion-proposal--discard-outcome undelivered reason)
                     (qwen-companion-proposal-buffer-text proposal))))
        (unless undelivered
          (qwen-companion-proposal--end proposal 'closed t)
          (qwen-companion-proposal--rescue-or-kill proposal reason t))
        (let ((kept (qwen-companion-proposal-buffer proposal)))
          (qwen-companion-proposal--await-write
           proposal text
           :optional t
           :stamp (qwen-companion-proposal-stamp proposal)
           :done (lambda (result _how)
                   (qwen-companion-rescue-write-ended kept result))))
        (qwen-companion-proposal--start-write-timeout (qwen-companion-proposal-session proposal))
        (when text
          ;; In a file, the process notices; as a reply, it would be another text or end the connection.
          (unless (or (> (length text) 8192) (qwen-companion-backend-unicode-p text))
            (error "A text that is not Unicode"))
          (qwen-companion-proposal--pack proposal text))))))

(defun qwen-companion-proposal-on-orphan (payload)
  "Handle `proposal-orphan': the CLI no longer waits for the proposal in PAYLOAD.
Without a reason, its session has ended.  An acceptance may not have
reached it then, so the text is rescued."
  (let* ((id (qwen-companion-proposal-orphan-id payload))
         (proposal (qwen-companion-proposal-by-id id))
         (reason (when-let* ((reason (qwen-companion-proposal-orphan-reason payload)))
                   (qwen-companion-untrusted-line reason)))
         (undelivered (qwen-companion-proposal--undelivered-by-id id)))
    (cond
     ((and proposal (or reason (not (qwen-companion-proposal-file-p proposal))))
      (qwen-companion-proposal-withdraw
       proposal (or reason "connection lost; answer in the terminal")))
     (proposal
      (qwen-companion-proposal--end proposal 'orphaned t)
      (qwen-companion-proposal--rescue-orphan proposal reason))
     (undelivered
      (setq proposal (car undelivered))
      (let ((is-lost (or (and (qwen-companion-proposal-file-p proposal) (null reason))
                         (qwen-companion-proposal-edited proposal))))
        (setf (qwen-companion-proposal-edited proposal) nil)
        (if-let* ((text (qwen-companion-proposal--discard-outcome undelivered nil))
                  (is-lost))
            (progn (qwen-companion-proposal--recreate-buffer proposal text)
                   (qwen-companion-proposal--rescue-orphan proposal reason))
          (when reason
            (message "qwen-companion: %s: %s"
                     (qwen-companion-proposal-display-path proposal) reason))))))
    (when proposal
      (qwen-companion-proposal--start-write-timeout (qwen-companion-proposal-session proposal)))
    nil))

(defun qwen-companion-proposal-on-released (payload)
  "Handle the `proposal-released' call: the terminal asks what PAYLOAD names."
  (when-let* ((proposal (qwen-companion-proposal-by-id
                         (qwen-companion-proposal-released-id payload))))
    (setf (qwen-companion-proposal-released proposal)
          (if (qwen-companion-proposal-released-answerable payload) 'asked 'left)
          (qwen-companion-proposal-note proposal)
          (qwen-companion-proposal-released-reason payload))
    (force-mode-line-update t)
    (message "qwen-companion: %s: %s" (qwen-companion-proposal-display-path proposal)
             (qwen-companion-proposal-note proposal))
    (run-hooks 'qwen-companion-proposal-changed-hook))
  nil)

(defun qwen-companion-proposal-on-written (payload)
  "Handle the `proposal-written' call: the CLI has made the edit in PAYLOAD.
Later changes of the file are not attributed to the CLI."
  (when-let* ((proposal (cl-find (qwen-companion-proposal-written-id payload)
                                 qwen-companion-proposal--awaiting-write
                                 :key #'qwen-companion-proposal-id :test #'equal)))
    (qwen-companion-disk-conclude (qwen-companion-proposal-write proposal)
                                  (qwen-companion-proposal-written-exactly payload))))

(defun qwen-companion-proposal-on-delivered (payload)
  "Handle the `delivered' call: forget the outcome in PAYLOAD."
  (when-let* ((undelivered (qwen-companion-proposal--undelivered-by-id
                            (qwen-companion-delivered-id payload))))
    (setq qwen-companion-proposal--undelivered
          (delq undelivered qwen-companion-proposal--undelivered))
    (qwen-companion-proposal--start-write-timeout
     (qwen-companion-proposal-session (car undelivered))))
  nil)

(defun qwen-companion-proposal-end-all ()
  "End all reviews because the companion stops.
No answer is sent: the CLI still asks in its terminal.  Texts that the
user has edited are rescued."
  (dolist (proposal (copy-sequence qwen-companion-proposal--open))
    (qwen-companion-proposal--end proposal 'closed)
    (qwen-companion-proposal--rescue-or-kill proposal "the companion was turned off"))
  (mapc #'qwen-companion-proposal--forget-write (copy-sequence qwen-companion-proposal--awaiting-write))
  (setq qwen-companion-proposal--undelivered nil)
  (qwen-companion-timers-cancel qwen-companion-proposal--redeliver-timer)
  (qwen-companion-rescue-stop-waiting))

(provide 'qwen-companion-proposal)
;;; qwen-companion-proposal.el ends here
