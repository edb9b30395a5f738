;;; qwen-companion-review.el --- Proposals of a CLI and their one life  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; A CLI proposes a new text for a file.  The proposal waits, is shown by
;; a front end, and ends exactly once: accepted or rejected by the user,
;; closed by the CLI (answered in the terminal), superseded by a newer one,
;; or orphaned when the CLI goes away.  The first of these wins.
;;
;; Two invariants hold for whatever is done here:
;; - The text sent with an acceptance is exactly what the review showed.
;; - No message says something of a file that the file's bytes do not
;;   bear out.
;; `make fuzz' checks both, line ends, byte order mark and the end of the
;; last line too.
;;
;; Both sides of a review are buffers of our own, so that the buffer that
;; visits the file is never locked, changed or asked about.  The text is
;; written by a model and hostile until read: it chooses no mode, sets no
;; variable, and reaches no format string or mode line.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-context)
(require 'qwen-companion-disk)
(require 'qwen-companion-merge)
(require 'qwen-companion-rescue)
(require 'qwen-companion-risks)
(require 'qwen-companion-roots)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-diff-arrival 'idle
  "When a proposal that has arrived is shown.
`idle': after half a second without input, `now': as soon as nothing
would be disturbed, `command': only by \\[qwen-companion-diff-open].
It never opens while a command is under way, a minibuffer, a keyboard
macro or another Ediff session; it waits then.  It also waits while its
terminal is in a tab that is not selected."
  :group 'qwen-companion
  :type '(choice (const :tag "When idle" idle)
                 (const :tag "At once" now)
                 (const :tag "On command" command)))

(defcustom qwen-companion-diff-select nil
  "Non-nil means that a review which opens by itself selects its window.
With nil the selected window stays selected."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-diff-style 'ediff
  "The front end in which a proposal is shown first.
`ediff': both texts, in Ediff; `unified': one buffer with the changes,
hunk by hunk.  TAB in the one shows the review in the other.

With nil no proposal is shown at all: a CLI that connects from then on
is not offered to have its changes reviewed in Emacs, and asks in its
terminal only."
  :group 'qwen-companion
  :type '(choice (const :tag "Ediff" ediff)
                 (const :tag "Unified diff" unified)
                 (const :tag "No reviews in Emacs" nil)))

(defvar qwen-companion-attention-functions nil
  "Abnormal hook run when a proposal arrives.
Each function gets the proposal, see `qwen-companion-proposal-path'
and its sisters.")

(defconst qwen-companion-review--idle-delay 0.5
  "Seconds without input after which a proposal may open.")

(defcustom qwen-companion-diff-size-limit 20000000
  "Bytes above which a text or a file is not reviewed.
The CLI is told so, and asks in its terminal only."
  :group 'qwen-companion
  :type 'natnum)

;;; The proposal

(cl-defstruct (qwen-companion-proposal
               (:copier nil)
               (:constructor qwen-companion-proposal--make))
  "A new text for a file, proposed by a CLI.
ID names it to the Python process; SESSION and CLIENT tell which CLI
it is from; PATH is the file.  STATE is `pending', `shown', `accepted',
`rejected', `closed', `superseded' or `orphaned'.  SEEN is non-nil when
it has been shown before.  DIGEST is that of the text as it was
proposed, see `qwen-companion-disk-digest'; EMPTY is non-nil when that
was empty, EDITED when the user had edited it at the end.  STAMP is
that of the file as the review knows it, see `qwen-companion-disk-stamp'.
LINE-END is what ends a line of the text: \"\\n\" or \"\\r\\n\".  BOM is
the byte order mark before it, or the empty string.  PROPOSED is what
both were as it was proposed, (LINE-END . BOM), and ON-DISK what they are
on disk; LINE-END is `mixed' or nil there as of
`qwen-companion-disk-line-end', BOM is nil where it cannot be compared.
AS-ON-DISK is non-nil when the user has dropped these changes, EXACT when
both buffers hold line ends as they are: they are compared as text.
NOTE is what the user should know beside all that, a string, or nil.
REAL and WARNING are from `qwen-companion-risks-examine'.  BUFFER
holds the proposed text and the user's edits: what is accepted, whatever
shows it.  DISK-BUFFER (made when it is shown) holds the text on disk.
UNSAVED is a buffer with unsaved text of the user that visits the file,
or nil, and YOURS-BUFFER holds a copy of that text while it is a third
party of the review.  BIDI is non-nil when the
text had characters that change the order in which others are shown.
LOSSY is non-nil when the CLI would write U+FFFD
for what it could not read.  STYLE is the front end that shows it, VIEW
belongs to that.  DIFFERENCE is what the unified front end knows of both
texts, and outlives VIEW.  ARRIVED is the time at which it came, in
seconds since the epoch.  ENDS-LINES is non-nil when the CLI may
end the last line of what it writes.  WATCH tells of changes in the directory of
the file while DISK-BUFFER is alive, and CHECKED is the stamp of the file
as the user last saw it or was warned of it.

When it has ended and its CLI may be about to write: WRITE is that, see
`qwen-companion-disk-expect'.  BASE is the text on disk before it, and
FORECAST what the file will then hold: a text, `asked' while that is
being computed, or `unknown'; both have LF line ends and no byte order
mark.  When FORECAST is known, BASE is the text to which it is written."
  id session client path (state 'pending) seen digest empty edited stamp
  (line-end "\n") (bom "") proposed on-disk as-on-disk exact note real warning buffer disk-buffer unsaved yours-buffer lossy bidi
  style view difference (arrived (float-time)) ends-lines watch checked
  write base forecast)

(defvar qwen-companion-proposal--open nil
  "The open proposals, oldest first.")

(defvar qwen-companion-proposal--undelivered nil
  "Outcomes the CLI has not got yet: (PROPOSAL . TEXT), newest first.
The outcome is the state of the proposal.")

(defvar qwen-companion-proposal--awaited nil
  "Ended proposals whose CLI may be about to write, oldest first.")

(defvar qwen-companion-review--timers nil
  "Timers that wait for a moment to show a proposal.")

(defvar qwen-companion-proposal-changed-hook nil
  "Hook run when the open proposals or the states of some have changed.")

(defvar qwen-companion-proposal-begun-functions nil
  "Abnormal hook run with each proposal that has come.")

(defvar qwen-companion-proposal-ended-functions nil
  "Abnormal hook run when a proposal has ended.
Each function gets the proposal, the state it was in before, `pending'
or `shown', and non-nil when it was the CLI that ended it.")

(defvar qwen-companion-proposal-miswritten-functions nil
  "Abnormal hook run when a file does not hold what was accepted for it.
Each function gets the buffer with the text that was accepted.")

(defvar-local qwen-companion-proposal-current nil
  "The proposal that the current buffer is about.")

(defun qwen-companion-proposals ()
  "Return the proposals that wait for an answer, oldest first."
  qwen-companion-proposal--open)

(defun qwen-companion-proposal-open-p (proposal)
  "Return non-nil when PROPOSAL waits for an answer."
  (memq proposal qwen-companion-proposal--open))

(defun qwen-companion-proposal-edited-p (proposal)
  "Return non-nil when the user has edited PROPOSAL."
  (or (buffer-modified-p (qwen-companion-proposal-buffer proposal))
      (qwen-companion-proposal-as-on-disk proposal)))

(defun qwen-companion-proposal-by-id (id)
  "Return the open proposal ID, or nil."
  (cl-find id qwen-companion-proposal--open
           :key #'qwen-companion-proposal-id :test #'equal))

(defun qwen-companion-proposal-display-path (proposal)
  "Return the file of PROPOSAL as shown to the user."
  (qwen-companion-untrusted-path (qwen-companion-proposal-path proposal)))

;;; Front ends

(cl-defgeneric qwen-companion-review-show (style proposal select)
  "Show PROPOSAL with the front end STYLE, a symbol.
Its buffers are made already.  SELECT non-nil means to select the
review, else the selected window stays selected.")

(cl-defgeneric qwen-companion-review-hide (style proposal)
  "Take PROPOSAL off the screen; the windows return as they were.
STYLE is the front end that shows it.  Its buffers stay alive.")

(cl-defgeneric qwen-companion-review-refresh (style proposal)
  "Compare the two sides of PROPOSAL anew if it is on the screen.
STYLE is the front end that shows it.")

(cl-defgeneric qwen-companion-review-visible-p (style proposal)
  "Return non-nil when PROPOSAL is on the screen.
STYLE is the front end that shows it.")

(cl-defgeneric qwen-companion-review-frame (style proposal)
  "Return the frame in which PROPOSAL was shown last, live or not.
STYLE is the front end that shows it.")

(cl-defgeneric qwen-companion-review-show-third (style proposal)
  "Show PROPOSAL, which is on the screen, with its third party or without.
That is the buffer `qwen-companion-proposal-yours-buffer', just made, or
nil: the one that was there is about to be killed.  STYLE is the front
end that shows it.")

(cl-defgeneric qwen-companion-review-unsaved-changed (_style _proposal)
  "Tell STYLE that there is, or no longer is, unsaved text to PROPOSAL.
The header lines of the buffers say so by themselves."
  nil)

(cl-defgeneric qwen-companion-review-line-ends-changed (_style _proposal)
  "Tell STYLE that line ends or the byte order mark of PROPOSAL differ otherwise.
See `qwen-companion-proposal-line-end-summary'; the header lines of the
buffers say so by themselves."
  nil)

;;; Buffers

(defvar qwen-companion-review-buffer-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "C-c C-c") #'qwen-companion-diff-accept)
    (define-key map (kbd "C-c C-k") #'qwen-companion-diff-reject)
    (define-key map (kbd "C-c C-u") #'qwen-companion-diff-show-unsaved)
    (define-key map (kbd "C-c C-l") #'qwen-companion-diff-toggle-line-ends)
    map)
  "Keys in the buffers of a review.")

(define-minor-mode qwen-companion-review-buffer-mode
  "Minor mode of the buffers of a review.

\\{qwen-companion-review-buffer-mode-map}"
  :interactive nil
  :lighter nil
  (if qwen-companion-review-buffer-mode
      (add-hook 'kill-buffer-hook #'qwen-companion-review--buffer-killed nil t)
    (remove-hook 'kill-buffer-hook #'qwen-companion-review--buffer-killed t)))

(defun qwen-companion-review--buffer-killed ()
  "Reject the proposal whose buffer is being killed.
A third party just goes."
  (let ((proposal qwen-companion-proposal-current))
    (cond
     ((eq (current-buffer) (qwen-companion-proposal-yours-buffer proposal))
      (setf (qwen-companion-proposal-yours-buffer proposal) nil)
      (qwen-companion-review--update-third proposal))
     ((qwen-companion-proposal-open-p proposal)
      (qwen-companion-proposal-decide proposal 'rejected)))))

(defun qwen-companion-proposal-make-buffer (proposal kind)
  "Return a new buffer for the side KIND, a string, of PROPOSAL."
  (let* ((path (qwen-companion-proposal-path proposal))
         (buffer (generate-new-buffer
                  (format "*qwen-companion %s: %s*"
                          kind (file-name-nondirectory
                                (qwen-companion-untrusted-path path))))))
    (with-current-buffer buffer
      (setq default-directory (file-name-directory path)
            qwen-companion-proposal-current proposal)
      (setq-local buffer-auto-save-file-name nil))
    buffer))

(defun qwen-companion-review--set-mode (path)
  "Give the current buffer, a side of a review, the major mode for PATH."
  (let ((proposal qwen-companion-proposal-current))
    (qwen-companion-untrusted-set-major-mode path)
    ;; The major mode has killed what was local.
    (setq qwen-companion-proposal-current proposal)
    (when (eq (current-buffer) (qwen-companion-proposal-buffer proposal))
      (setq buffer-offer-save t))
    (qwen-companion-review-buffer-mode 1)))

(defun qwen-companion-proposal--fill (proposal payload)
  "Make the buffer of PROPOSAL from the text in PAYLOAD."
  (let ((buffer (qwen-companion-proposal-make-buffer proposal "proposal")))
    (setf (qwen-companion-proposal-buffer proposal) buffer)
    (with-current-buffer buffer
      (buffer-disable-undo)
      (qwen-companion-backend-insert-text payload)
      (goto-char (point-min))
      (when (looking-at-p "\ufeff")
        (delete-char 1)
        (setf (qwen-companion-proposal-bom proposal) "\ufeff"))
      (setf (qwen-companion-proposal-empty proposal) (zerop (buffer-size))
            (qwen-companion-proposal-proposed proposal)
            (cons (qwen-companion-disk-line-end)
                  (qwen-companion-proposal-bom proposal)))
      (when (equal "\r\n" (car (qwen-companion-proposal-proposed proposal)))
        (qwen-companion-proposal--hide-carriage-returns proposal))
      (goto-char (point-min))
      (buffer-enable-undo)
      (set-buffer-modified-p nil)
      ;; Emacs asks about it, if edited, before it exits.
      (setq buffer-offer-save t))))

(defun qwen-companion-proposal--hide-carriage-returns (proposal)
  "If every line of PROPOSAL ends in CR LF, let its buffer show LF only."
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (when (equal "\r\n" (qwen-companion-disk-line-end))
      (qwen-companion-disk-convert-line-ends "\n")
      (setf (qwen-companion-proposal-line-end proposal) "\r\n"))))

(defun qwen-companion-proposal--show-carriage-returns (proposal)
  "Let the buffer of PROPOSAL hold its line ends as they are, CR included."
  (when (equal "\r\n" (qwen-companion-proposal-line-end proposal))
    (with-current-buffer (qwen-companion-proposal-buffer proposal)
      (qwen-companion-disk-convert-line-ends "\r\n"))
    (setf (qwen-companion-proposal-line-end proposal) "\n"
          ;; What it knows of the text is of the other form.
          (qwen-companion-proposal-difference proposal) nil)))

(defun qwen-companion-proposal-align-line-ends (proposal bom)
  "Make the current buffer, the disk side of PROPOSAL, comparable with it.
It holds the text exactly; BOM is the byte order mark before that, or
nil.  Where lines end in different ways on one side, both sides show it,
so that each can be dropped by itself; elsewhere it is one change, see
`qwen-companion-proposal-line-end-summary'."
  (let* ((proposed (car (qwen-companion-proposal-proposed proposal)))
         (disk (qwen-companion-disk-line-end))
         (exact (or (eq disk 'mixed)
                    (eq proposed 'mixed)
                    ;; Some were dropped while both sides showed them.
                    (and (qwen-companion-proposal-exact proposal)
                         (not (equal proposed
                                     (with-current-buffer (qwen-companion-proposal-buffer proposal)
                                       (qwen-companion-disk-line-end))))))))
    (cond
     (exact
      (qwen-companion-proposal--show-carriage-returns proposal))
     (t
      (when (qwen-companion-proposal-exact proposal)
        (qwen-companion-proposal--hide-carriage-returns proposal))
      (when (equal disk "\r\n")
        (qwen-companion-disk-convert-line-ends "\n"))))
    (setf (qwen-companion-proposal-exact proposal) exact
          (qwen-companion-proposal-on-disk proposal)
          (and (or (> (buffer-size) 0) bom)
               (cons disk bom)))
    (qwen-companion-proposal-set-line-ends
     proposal (qwen-companion-proposal-as-on-disk proposal))))

(defun qwen-companion-review--insert-disk (path)
  "Insert the text of the file PATH exactly.
Return the byte order mark before it, \"\" for none, or nil where there
is no such file or its encoding has no use for one."
  (let ((coding (qwen-companion-disk-insert
                 path (qwen-companion-disk-named-coding path) t)))
    (cond ((null coding) (and (file-exists-p path) ""))
          ((eq 'utf-8-with-signature (coding-system-base coding)) "\ufeff")
          ((memq (coding-system-type coding) '(utf-8 undecided)) ""))))

(defun qwen-companion-review--prepare (proposal)
  "Make the other side of PROPOSAL and dress both buffers.
The other side is the text on disk, from which the CLI has made its
proposal.  What was accepted before and is not written yet is not in it:
then the CLI has not seen that either."
  (let ((path (qwen-companion-proposal-path proposal))
        (disk (qwen-companion-proposal-make-buffer proposal "disk")))
    (setf (qwen-companion-proposal-disk-buffer proposal) disk)
    (with-current-buffer disk
      (qwen-companion-proposal-align-line-ends
       proposal (qwen-companion-review--insert-disk path))
      (goto-char (point-min))
      (qwen-companion-review--set-mode path)
      (set-buffer-modified-p nil)
      (setq buffer-read-only t)
      (qwen-companion-review--set-header
       (if (file-exists-p path) "on disk" "not on disk yet")))
    (qwen-companion-review--note-writes proposal)
    (qwen-companion-review--watch-disk proposal)
    (setf (qwen-companion-proposal-lossy proposal)
          (qwen-companion-review--loses-text-p proposal)
          (qwen-companion-proposal-bidi proposal)
          (with-current-buffer (qwen-companion-proposal-buffer proposal)
            (qwen-companion-untrusted-bidi-control)))
    (with-current-buffer (qwen-companion-proposal-buffer proposal)
      (let ((modified (buffer-modified-p)))
        (qwen-companion-review--set-mode path)
        (set-buffer-modified-p modified))
      (qwen-companion-review--describe proposal))))

(defun qwen-companion-review--loses-text-p (proposal)
  "Return non-nil when the CLI of PROPOSAL could not read all of the file.
Some CLIs take every file for UTF-8, and what is not for U+FFFD."
  (let ((lost-p (lambda (buffer)
                  (with-current-buffer buffer
                    (unless (qwen-companion-untrusted-ascii-p)
                      (save-excursion
                        (goto-char (point-min))
                        (search-forward "\ufffd" nil t)))))))
    (and (funcall lost-p (qwen-companion-proposal-buffer proposal))
         (not (funcall lost-p (qwen-companion-proposal-disk-buffer proposal))))))

;;; Line ends and the byte order mark

(defun qwen-companion-proposal--line-end-changes (proposal)
  "Return how line ends and the byte order mark of PROPOSAL differ from the disk.
A list of (WHAT PROPOSED ON-DISK), strings, as shown to the user."
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
                  (not (qwen-companion-proposal--no-text-p proposal)))
         (list (if (string-empty-p bom)
                   '("byte order mark" "not proposed" "on disk")
                 '("byte order mark" "proposed" "not on disk"))))))))

(defun qwen-companion-proposal--no-text-p (proposal)
  "Return non-nil when PROPOSAL was empty, without even a byte order mark."
  (and (qwen-companion-proposal-empty proposal)
       (string-empty-p (cdr (qwen-companion-proposal-proposed proposal)))))

(defun qwen-companion-proposal-line-end-summary (proposal)
  "Return a text: how line ends and byte order mark of PROPOSAL change, or nil.
They are one change of the whole text, which can be dropped."
  (when-let* ((changes (qwen-companion-proposal--line-end-changes proposal)))
    (if (qwen-companion-proposal-as-on-disk proposal)
        (concat (mapconcat #'car changes " and ") " as on disk")
      (mapconcat (pcase-lambda (`(,what ,proposed ,disk))
                   (format "%s: %s, %s" what proposed disk))
                 changes "; "))))

(defun qwen-companion-proposal-set-line-ends (proposal as-on-disk)
  "Give PROPOSAL its own line ends and mark, or with AS-ON-DISK those on disk.
A text without any is given those on disk: it gets line ends when changes
are dropped."
  (pcase-let ((`(,line-end . ,bom) (qwen-companion-proposal-proposed proposal))
              (`(,disk-line-end . ,disk-bom) (qwen-companion-proposal-on-disk proposal)))
    (unless (qwen-companion-proposal--line-end-changes proposal)
      (setq as-on-disk nil))
    (unless (qwen-companion-proposal-exact proposal)
      (setf (qwen-companion-proposal-line-end proposal)
            (or (and as-on-disk disk-line-end) line-end disk-line-end "\n")))
    (setf (qwen-companion-proposal-bom proposal)
          (or (and (or as-on-disk (qwen-companion-proposal--no-text-p proposal)) disk-bom)
              bom)
          (qwen-companion-proposal-as-on-disk proposal) as-on-disk)))

(defun qwen-companion-diff-toggle-line-ends (&optional file)
  "Keep line ends and byte order mark as on disk, or take the proposed ones.
It is for the proposal the current buffer is about, else the only one
that waits; FILE names another one by its file."
  (interactive (list (qwen-companion-review--read "Change the line ends of")))
  (let ((proposal (qwen-companion-review--find file "change")))
    (unless (qwen-companion-proposal-line-end-summary proposal)
      (user-error "The line ends of %s do not change"
                  (qwen-companion-proposal-display-path proposal)))
    (qwen-companion-proposal-set-line-ends
     proposal (not (qwen-companion-proposal-as-on-disk proposal)))
    (force-mode-line-update t)
    (qwen-companion-review-line-ends-changed
     (qwen-companion-proposal-style proposal) proposal)
    (run-hooks 'qwen-companion-proposal-changed-hook)))

(defun qwen-companion-review-bidi-hint ()
  "Return the part of a header line about a text that is turned around, or nil.
Only a text in which that was seen when the review began is searched."
  (let ((proposal qwen-companion-proposal-current))
    (when-let* (((qwen-companion-proposal-bidi proposal))
                (character (with-current-buffer (qwen-companion-proposal-buffer proposal)
                             (qwen-companion-untrusted-bidi-control))))
      (concat "  " (propertize (format "text turned around (U+%04X)" character)
                               'face 'warning)))))

(defun qwen-companion-review-line-ends-hint (key)
  "Return the part of a header line about line ends, KEY being for these."
  (when-let* ((text (qwen-companion-proposal-line-end-summary qwen-companion-proposal-current)))
    (concat "  " key " " (propertize text 'face 'warning))))

;;; What a review says

(defun qwen-companion-review--describe (proposal)
  "Give the current buffer, that of PROPOSAL, its header line."
  (qwen-companion-review--set-header
   (format "proposed by %s" (qwen-companion-proposal-client proposal))))

(defun qwen-companion-review--loss-hint (proposal)
  "Return the part of a header line about text of PROPOSAL that would be lost."
  (if (qwen-companion-proposal-lossy proposal)
      (propertize "  loses text (U+FFFD)" 'face 'warning)
    ""))

(defun qwen-companion-review-warnings (proposal)
  "Return the part of a header line that warns of accepting PROPOSAL.
It is short: there is not much room beside the keys."
  (concat
   (qwen-companion-review--loss-hint proposal)
   (mapconcat
    (lambda (warning)
      (propertize (concat "  " (qwen-companion-untrusted-text warning)) 'face 'warning))
    (delq nil
          (list (qwen-companion-proposal-note proposal)
                (and (qwen-companion-proposal-edited-p proposal)
                     (qwen-companion-proposal-unwritten-before proposal)
                     (format "%s may fail to write your edits"
                             (qwen-companion-proposal-client proposal)))))
    "")))

;;; The disk side

(defun qwen-companion-review--watch-disk (proposal)
  "Let the disk side of PROPOSAL follow its file, visited or not."
  (qwen-companion-review--unwatch-disk proposal)
  (let ((path (qwen-companion-proposal-path proposal)))
    (setf (qwen-companion-proposal-watch proposal)
          (qwen-companion-disk-watch
           (qwen-companion-disk-directory path)
           (lambda ()
             ;; Other files of the directory cost little.
             (unless (or (not (qwen-companion-proposal-open-p proposal))
                         (equal (qwen-companion-proposal-stamp proposal)
                                (qwen-companion-disk-stamp path)))
               (qwen-companion-review-file-written path)))))))

(defun qwen-companion-review--unwatch-disk (proposal)
  "Let the disk side of PROPOSAL follow its file no longer."
  (when-let* ((watch (qwen-companion-proposal-watch proposal)))
    (setf (qwen-companion-proposal-watch proposal) nil)
    (file-notify-rm-watch watch)))

(defun qwen-companion-review-file-written (path)
  "Bring the reviews of PATH along if that file was written.
Only the side that shows the disk changes, never a proposed text."
  (dolist (proposal (qwen-companion-proposals-of-file path))
    (let ((stamp (qwen-companion-disk-stamp path))
          (disk (qwen-companion-proposal-disk-buffer proposal)))
      (unless (equal stamp (qwen-companion-proposal-stamp proposal))
        (setf (qwen-companion-proposal-stamp proposal) stamp)
        (when disk
          (with-temp-buffer
            (qwen-companion-proposal-align-line-ends
             proposal (qwen-companion-review--insert-disk path))
            (qwen-companion-review--refresh-disk proposal (current-buffer)))
          (qwen-companion-review-line-ends-changed
           (qwen-companion-proposal-style proposal) proposal))))))

(defun qwen-companion-review--refresh-disk (proposal source)
  "Make the disk side of PROPOSAL hold the text of the buffer SOURCE."
  (with-current-buffer (qwen-companion-proposal-disk-buffer proposal)
    (if (qwen-companion-disk-same-text-p source)
        ;; Only its time has changed: nothing would be overwritten.
        (setf (qwen-companion-proposal-checked proposal)
              (qwen-companion-proposal-stamp proposal))
      (let ((inhibit-read-only t))
        (replace-buffer-contents source 0.1))
      (qwen-companion-untrusted-show-bidi-controls)
      (set-buffer-modified-p nil)
      (qwen-companion-review--set-header "on disk, changed meanwhile")
      (setf (qwen-companion-proposal-note proposal)
            "the file has changed since")
      (force-mode-line-update t)
      (qwen-companion-review-refresh (qwen-companion-proposal-style proposal)
                                   proposal))))

(defun qwen-companion-review--note-writes (proposal)
  "Note that the file of PROPOSAL, now about to be shown, was written since."
  (let ((stamp (qwen-companion-disk-stamp (qwen-companion-proposal-path proposal))))
    (unless (equal stamp (qwen-companion-proposal-stamp proposal))
      (setf (qwen-companion-proposal-stamp proposal) stamp
            (qwen-companion-proposal-note proposal)
            "the file was written since"))
    (setf (qwen-companion-proposal-checked proposal) stamp)))

(defun qwen-companion-review--check-disk (proposal)
  "Signal a `user-error' if the file of PROPOSAL was written behind its back.
That is said once for each change; accepting again accepts."
  (qwen-companion-review-file-written (qwen-companion-proposal-path proposal))
  (let ((stamp (qwen-companion-proposal-stamp proposal)))
    (unless (equal stamp (qwen-companion-proposal-checked proposal))
      (setf (qwen-companion-proposal-checked proposal) stamp)
      (user-error "%s was written after this was proposed, and accepting may overwrite that; look at the review, or accept again to do so"
                  (qwen-companion-proposal-display-path proposal)))))

(defun qwen-companion-proposals-of-file (path)
  "Return the open proposals for the file PATH, whoever made them."
  (let ((truename (file-truename path)))
    (cl-remove truename qwen-companion-proposal--open :test-not #'equal
               :key (lambda (proposal)
                      (file-truename (qwen-companion-proposal-path proposal))))))

(defun qwen-companion-review-place (proposal)
  "Return the file of PROPOSAL as named in its project, with the project.
What a link leads to has its real name where that matters."
  (let ((path (qwen-companion-proposal-path proposal))
        (real (qwen-companion-proposal-real proposal))
        (root (qwen-companion-roots-of default-directory)))
    (cond
     (real (qwen-companion-untrusted-path real))
     (root (format "%s [%s]"
                   (qwen-companion-untrusted-path (file-relative-name path root))
                   (qwen-companion-untrusted-path (file-name-nondirectory root))))
     (t (qwen-companion-proposal-display-path proposal)))))

(defun qwen-companion-review-warning-hint (proposal)
  "Return the part of a header line that warns of the file of PROPOSAL."
  (if-let* ((warning (qwen-companion-proposal-warning proposal)))
      (concat "  " (propertize warning 'face 'warning))
    ""))

(defun qwen-companion-review--set-header (text)
  "Give the current buffer a header line with the keys, the file and TEXT.
The keys come first: a long name must not push them off the screen.
What the user has edited or not saved is said as long as that is so."
  (setq header-line-format
        (list (substitute-command-keys
               " \\[qwen-companion-diff-accept] accept  \\[qwen-companion-diff-reject] reject")
              `(:eval (qwen-companion-review-unsaved-hint
                       ,(substitute-command-keys
                         "\\[qwen-companion-diff-show-unsaved]")))
              `(:eval (qwen-companion-review-line-ends-hint
                       ,(substitute-command-keys
                         "\\[qwen-companion-diff-toggle-line-ends]")))
              ;; The name of the file has room on the other side.
              '(:eval (if buffer-read-only
                          (qwen-companion-review--loss-hint qwen-companion-proposal-current)
                        (qwen-companion-untrusted-mode-line
                         (qwen-companion-review-warnings qwen-companion-proposal-current))))
              '(:eval (qwen-companion-review-bidi-hint))
              (qwen-companion-untrusted-mode-line
               (qwen-companion-review-warning-hint qwen-companion-proposal-current))
              (qwen-companion-untrusted-mode-line
               (format "  %s: %s"
                       (qwen-companion-review-place qwen-companion-proposal-current)
                       (qwen-companion-untrusted-text text)))
              '(:eval (when (and (not buffer-read-only) (buffer-modified-p))
                        ", edited by you"))
              '(:eval (when (qwen-companion-review--outdated-p)
                        ", which has changed since")))))

(defun qwen-companion-proposal-text (proposal)
  "Return the text of PROPOSAL with the user's edits, exactly."
  (let ((text (qwen-companion-disk-text
               (qwen-companion-proposal-buffer proposal)
               (qwen-companion-proposal-line-end proposal))))
    (if (and (string-empty-p text)
             (or (not (qwen-companion-proposal-empty proposal))
                 (qwen-companion-proposal--no-text-p proposal)))
        ""
      (concat (qwen-companion-proposal-bom proposal) text))))

(defun qwen-companion-proposal--rescue (proposal reason &optional awaited)
  "Keep the text of PROPOSAL in a buffer and tell the user; REASON is why.
AWAITED non-nil means that its CLI may be about to write.  A text that
is on disk needs no keeping."
  (if (qwen-companion-disk-holds-p (qwen-companion-proposal-path proposal)
                                   (qwen-companion-proposal-text proposal))
      (kill-buffer (qwen-companion-proposal-buffer proposal))
    (qwen-companion-rescue-keep
     (qwen-companion-proposal-buffer proposal)
     (make-qwen-companion-rescue
      :path (qwen-companion-proposal-path proposal)
      :reason reason
      :stamp (qwen-companion-proposal-stamp proposal)
      :digest (qwen-companion-proposal-digest proposal)
      :line-end (qwen-companion-proposal-line-end proposal)
      :ends-lines (qwen-companion-proposal-ends-lines proposal)
      :awaited awaited))))

(defun qwen-companion-proposal--rescue-or-kill (proposal reason &optional awaited)
  "Keep the text of PROPOSAL, for REASON, if the user edited it; else kill it.
AWAITED is as in `qwen-companion-proposal--rescue'."
  (if (qwen-companion-proposal-edited proposal)
      (qwen-companion-proposal--rescue proposal reason awaited)
    (kill-buffer (qwen-companion-proposal-buffer proposal))))

;;; Unsaved text of the user's

(defconst qwen-companion-review--unsaved-delay 0.1
  "Seconds without input after which unsaved text is looked for.")

(defvar qwen-companion-review--unsaved-timer nil
  "Timer that looks for unsaved text, nil while no proposal waits.")

(defconst qwen-companion-review--saving-hooks
  '(after-save-hook after-revert-hook)
  "Hooks that run when a text is saved, also where no key was pressed.")

(defvar-local qwen-companion-review--source nil
  "What the current buffer, a third party, is a copy of: (BUFFER . TICK).
TICK is what `buffer-chars-modified-tick' was in BUFFER.")

(defun qwen-companion-review--watch-unsaved ()
  "Look for unsaved text, and go on with that while proposals wait."
  (cond
   ((null (qwen-companion-proposals))
    (when qwen-companion-review--unsaved-timer
      (cancel-timer qwen-companion-review--unsaved-timer)
      (setq qwen-companion-review--unsaved-timer nil)
      (dolist (hook qwen-companion-review--saving-hooks)
        (remove-hook hook #'qwen-companion-review--check-unsaved-soon))))
   ((null qwen-companion-review--unsaved-timer)
    (setq qwen-companion-review--unsaved-timer
          (run-with-idle-timer qwen-companion-review--unsaved-delay t
                               #'qwen-companion-review-check-unsaved))
    (dolist (hook qwen-companion-review--saving-hooks)
      (add-hook hook #'qwen-companion-review--check-unsaved-soon))))
  (qwen-companion-review-check-unsaved))

(defun qwen-companion-review--check-unsaved-soon ()
  "Look for unsaved text when what is under way has ended."
  (run-at-time 0 nil #'qwen-companion-review-check-unsaved))

(defun qwen-companion-review-check-unsaved ()
  "Let the reviews say whether the user has unsaved text of their files.
A text that is no longer unsaved may be on disk now."
  (let (changed)
    (dolist (proposal (qwen-companion-proposals))
      (let* ((path (qwen-companion-proposal-path proposal))
             (unsaved (find-buffer-visiting path #'buffer-modified-p)))
        (unless (eq unsaved (qwen-companion-proposal-unsaved proposal))
          (setf (qwen-companion-proposal-unsaved proposal) unsaved)
          (qwen-companion-review-unsaved-changed
           (qwen-companion-proposal-style proposal) proposal)
          (unless unsaved
            (qwen-companion-review-file-written path))
          (setq changed t))))
    (when changed
      (force-mode-line-update t)
      (run-hooks 'qwen-companion-proposal-changed-hook))))

(defun qwen-companion-review-unsaved-hint (key)
  "Return the part of a header line about unsaved text, KEY being for that."
  (let ((proposal qwen-companion-proposal-current))
    (cond
     ((qwen-companion-proposal-yours-buffer proposal)
      (format "  %s without your text" key))
     ((qwen-companion-proposal-unsaved proposal)
      (concat "  " key " " (propertize "your unsaved text" 'face 'warning))))))

(defun qwen-companion-review--outdated-p ()
  "Return non-nil when the current buffer is a copy of a text that has changed."
  (pcase qwen-companion-review--source
    (`(,buffer . ,tick)
     (and (buffer-live-p buffer)
          (/= tick (buffer-chars-modified-tick buffer))))))

(defun qwen-companion-review--make-yours (proposal)
  "Make the third party of PROPOSAL from the user's unsaved text."
  (let ((unsaved (qwen-companion-proposal-unsaved proposal))
        (yours (qwen-companion-proposal-make-buffer proposal "yours")))
    (with-current-buffer yours
      (insert (qwen-companion-disk-text unsaved "\n"))
      (goto-char (point-min))
      (qwen-companion-review--set-mode (qwen-companion-proposal-path proposal))
      (set-buffer-modified-p nil)
      (setq buffer-read-only t
            qwen-companion-review--source
            (cons unsaved (buffer-chars-modified-tick unsaved)))
      (qwen-companion-review--set-header
       (format "your unsaved text in %s" (buffer-name unsaved))))
    (setf (qwen-companion-proposal-yours-buffer proposal) yours)))

(defun qwen-companion-review--drop-yours (proposal)
  "Kill the buffer of the third party of PROPOSAL, if there is one."
  (when-let* ((yours (qwen-companion-proposal-yours-buffer proposal)))
    (setf (qwen-companion-proposal-yours-buffer proposal) nil)
    (with-current-buffer yours
      (qwen-companion-review-buffer-mode -1))
    (qwen-companion-review--update-third proposal)
    (kill-buffer yours)))

(defun qwen-companion-review--update-third (proposal)
  "Show PROPOSAL with its third party or without, if it is on the screen.
If the user has put other things there, it has to be opened again."
  (when (eq (qwen-companion-proposal-state proposal) 'shown)
    (if (qwen-companion-review-visible-p
         (qwen-companion-proposal-style proposal) proposal)
        (qwen-companion-review-show-third
         (qwen-companion-proposal-style proposal) proposal)
      (setf (qwen-companion-proposal-state proposal) 'pending)
      (qwen-companion-review-hide
       (qwen-companion-proposal-style proposal) proposal))))

;;; The one life

(defun qwen-companion-proposal--end (proposal state &optional by-cli)
  "Let PROPOSAL end in STATE: it is no longer open.
BY-CLI non-nil means that the user may be about to answer.  Its own
buffer is left to the caller."
  (let ((before (qwen-companion-proposal-state proposal)))
    (setf (qwen-companion-proposal-state proposal) state
          (qwen-companion-proposal-edited proposal)
          (qwen-companion-proposal-edited-p proposal))
    (setq qwen-companion-proposal--open
          (delq proposal qwen-companion-proposal--open))
    (run-hook-with-args 'qwen-companion-proposal-ended-functions
                        proposal before by-cli)))

(defun qwen-companion-review--ended (proposal before by-cli)
  "Take PROPOSAL, which has ended, off the screen and out of its buffers.
BEFORE is its state before that.  BY-CLI non-nil means that the user has
not answered, but may be about to."
  (let ((selected (and by-cli
                       (eq before 'shown)
                       (eq proposal (buffer-local-value
                                     'qwen-companion-proposal-current
                                     (window-buffer))))))
    (when (eq before 'shown)
      (qwen-companion-review-hide (qwen-companion-proposal-style proposal) proposal))
    (qwen-companion-review--unwatch-disk proposal)
    (when-let* ((disk (qwen-companion-proposal-disk-buffer proposal)))
      (kill-buffer disk))
    (qwen-companion-review--drop-yours proposal)
    (when (buffer-live-p (qwen-companion-proposal-buffer proposal))
      (with-current-buffer (qwen-companion-proposal-buffer proposal)
        (qwen-companion-review-buffer-mode -1)))
    (force-mode-line-update t)
    (qwen-companion-review-schedule)
    (when selected
      (qwen-companion-review--catch-keys proposal))))

(add-hook 'qwen-companion-proposal-ended-functions #'qwen-companion-review--ended)

(defconst qwen-companion-review--late 1.5
  "Seconds in which keys for a review that has ended by itself are caught.")

(defun qwen-companion-review--catch-keys (proposal)
  "Let a key that was meant for the review of PROPOSAL do nothing else.
The review was selected and has ended by itself.  That is about the next
key only, and for a moment."
  (let ((map (make-sparse-keymap))
        (late (lambda ()
                (interactive)
                (message "qwen-companion: the review of %s has ended before you answered"
                         (qwen-companion-proposal-display-path proposal)))))
    (dolist (command '(qwen-companion-diff-accept qwen-companion-diff-reject))
      (dolist (key (where-is-internal command (list qwen-companion-review-buffer-mode-map)))
        (define-key map key late)))
    (run-at-time qwen-companion-review--late nil (set-transient-map map))))

(defun qwen-companion-proposal-decide (proposal outcome &optional text)
  "End PROPOSAL by the user's OUTCOME, `accepted' (with TEXT) or `rejected'."
  (qwen-companion-proposal--end proposal outcome)
  (push (cons proposal text) qwen-companion-proposal--undelivered)
  (when (eq outcome 'accepted)
    (qwen-companion-proposal--await-write
     proposal text
     :done (apply-partially #'qwen-companion-proposal--write-ended proposal text))
    (qwen-companion-proposal--note-accepted proposal))
  (qwen-companion-proposal--deliver (car qwen-companion-proposal--undelivered))
  (kill-buffer (qwen-companion-proposal-buffer proposal)))

(defun qwen-companion-proposal--note-accepted (accepted)
  "Say in the other reviews of the same file that ACCEPTED was accepted."
  (dolist (other (qwen-companion-proposals-of-file
                  (qwen-companion-proposal-path accepted)))
    (setf (qwen-companion-proposal-note other)
          (format "another one, by %s, was accepted"
                  (qwen-companion-proposal-client accepted))))
  (force-mode-line-update t))

;;; What the CLI writes

;; A CLI may ask about several changes before it makes the first one.  It
;; has made all of them from the text on disk, and some apply one after
;; the other by what they replace.  So a text that was accepted may never
;; be on disk as it is; what will be there is computed.  The time in which
;; the CLI should write begins when it waits for no more answers.

(cl-defun qwen-companion-proposal--await-write (proposal text &key optional stamp done)
  "Expect that the CLI of PROPOSAL writes TEXT.
OPTIONAL, STAMP and DONE are as in `qwen-companion-disk-expect'; DONE is
called when PROPOSAL is no longer awaited."
  (let* ((path (qwen-companion-proposal-path proposal))
         (earlier (qwen-companion-proposal--awaited-for path)))
    (setq qwen-companion-proposal--awaited
          (append qwen-companion-proposal--awaited (list proposal)))
    (setf (qwen-companion-proposal-forecast proposal)
          (cond ((null text) 'unknown)
                ((null earlier) (qwen-companion-proposal--plain-text text)))
          (qwen-companion-proposal-base proposal)
          (and earlier (qwen-companion-proposal--disk-text path))
          (qwen-companion-proposal-write proposal)
          (qwen-companion-disk-expect
           path text :optional optional :stamp stamp
           :done (lambda (result how)
                   (unwind-protect
                       (when done (funcall done result how))
                     (qwen-companion-proposal--forget-write proposal)))))
    (when (and text (qwen-companion-proposal-ends-lines proposal))
      (qwen-companion-disk-allow (qwen-companion-proposal-write proposal)
                                 (qwen-companion-disk-end-line text)))
    (qwen-companion-proposal--update-forecasts path)))

(defun qwen-companion-proposal--plain-text (text)
  "Return TEXT with LF line ends and without a byte order mark."
  (string-replace "\r\n" "\n" (string-remove-prefix "\ufeff" text)))

(defun qwen-companion-proposal--disk-text (path)
  "Return the text of the file PATH, plain."
  (with-temp-buffer
    (qwen-companion-disk-insert path (qwen-companion-disk-named-coding path))
    (qwen-companion-proposal--plain-text (buffer-string))))

(defun qwen-companion-proposal--awaited-for (path)
  "Return the proposals for PATH whose CLI may be about to write, oldest first."
  (cl-remove path qwen-companion-proposal--awaited
             :key #'qwen-companion-proposal-path :test-not #'equal))

(defun qwen-companion-proposal-unwritten-before (proposal)
  "Return what the CLI of PROPOSAL has yet to write to the file before it.
A list of accepted proposals."
  (cl-remove-if-not
   (lambda (earlier)
     (and (eq (qwen-companion-proposal-state earlier) 'accepted)
          (equal (qwen-companion-proposal-session proposal)
                 (qwen-companion-proposal-session earlier))
          (qwen-companion-disk-untouched-p (qwen-companion-proposal-write earlier))))
   (qwen-companion-proposal--awaited-for (qwen-companion-proposal-path proposal))))

(defun qwen-companion-proposal--forget-write (proposal)
  "Expect no longer that the CLI of PROPOSAL writes."
  (setq qwen-companion-proposal--awaited
        (delq proposal qwen-companion-proposal--awaited))
  (qwen-companion-disk-forget (qwen-companion-proposal-write proposal))
  (setf (qwen-companion-proposal-write proposal) nil
        (qwen-companion-proposal-base proposal) nil))

(defun qwen-companion-proposal--update-forecasts (path)
  "Compute what PATH will hold when all that is awaited was written."
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
  "Compute the forecast of PROPOSAL where MINE is written before it."
  (let* ((write (qwen-companion-proposal-write proposal))
         (path (qwen-companion-proposal-path proposal))
         (theirs (qwen-companion-proposal--plain-text (qwen-companion-disk-accepted write))))
    (setf (qwen-companion-proposal-forecast proposal) 'asked)
    (qwen-companion-merge-texts
     (qwen-companion-proposal-base proposal) mine theirs nil
     (lambda (merged)
       (let ((text (and merged (qwen-companion-merge-take-text merged theirs))))
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

(defun qwen-companion-proposal--start-write-timeout (session)
  "Count the time in which SESSION should write, unless it waits for answers."
  (let ((of-session-p (lambda (proposal)
                        (equal session (qwen-companion-proposal-session proposal)))))
    (unless (or (cl-some of-session-p qwen-companion-proposal--open)
                (cl-some of-session-p (mapcar #'car qwen-companion-proposal--undelivered)))
      (dolist (proposal (cl-remove-if-not of-session-p qwen-companion-proposal--awaited))
        (qwen-companion-disk-expect-soon (qwen-companion-proposal-write proposal))))))

(defun qwen-companion-proposal--stop-write-timeout (session)
  "Do not count the time in which SESSION should write: it waits for an answer."
  (dolist (proposal qwen-companion-proposal--awaited)
    (when (equal session (qwen-companion-proposal-session proposal))
      (qwen-companion-disk-expect-later (qwen-companion-proposal-write proposal)))))

(defun qwen-companion-proposal--write-ended (proposal text result how)
  "Keep TEXT, which was accepted of PROPOSAL, if it is not on disk.
RESULT and HOW are as in `qwen-companion-disk-expect'."
  (pcase result
    ('overwritten
     (when (qwen-companion-proposal-edited proposal)
       (qwen-companion-proposal--rescue-accepted
        proposal text "the change accepted after this one has replaced it, with your edits")))
    ('changed (qwen-companion-proposal--rescue-changed proposal text))
    ('unchanged
     (qwen-companion-proposal--rescue-accepted
      proposal text (format "%s has not written %s %s"
                            (qwen-companion-untrusted-text
                             (qwen-companion-proposal-client proposal))
                            (qwen-companion-proposal-display-path proposal) how))
     (when (buffer-live-p (qwen-companion-proposal-buffer proposal))
       (qwen-companion-rescue-expect-late (qwen-companion-proposal-buffer proposal))))))

(defun qwen-companion-proposal--rescue-changed (proposal text)
  "Keep TEXT, accepted of PROPOSAL, which is not what its file has now.
If that is what was accepted before, the text is kept with it."
  (let* ((path (qwen-companion-proposal-path proposal))
         (file (qwen-companion-proposal-display-path proposal))
         (base (qwen-companion-proposal-base proposal))
         (forecast (qwen-companion-proposal-forecast proposal)))
    (if (and base (stringp forecast) (qwen-companion-disk-holds-p path base))
        (progn
          (setf (qwen-companion-proposal-stamp proposal)
                (qwen-companion-disk-stamp path))
          (qwen-companion-proposal--rescue-accepted
           proposal forecast
           (format "%s holds the change accepted before, but not this one" file)))
      (qwen-companion-proposal--rescue-accepted
       proposal text (format "%s does not hold what was accepted" file))
      (when (buffer-live-p (qwen-companion-proposal-buffer proposal))
        (run-hook-with-args 'qwen-companion-proposal-miswritten-functions
                            (qwen-companion-proposal-buffer proposal))))))

(defun qwen-companion-proposal--rescue-accepted (proposal text reason)
  "Keep TEXT, accepted of PROPOSAL, whose buffer was killed; REASON is why."
  (qwen-companion-proposal--recreate-buffer proposal text)
  (qwen-companion-proposal--rescue proposal reason))

(defun qwen-companion-proposal--void (undelivered reason)
  "End UNDELIVERED, an outcome that came too late, in the state `closed'.
If it was an acceptance with edits, keep its text; REASON is why it is
void.  Return that text, or nil for a rejection."
  (pcase-let ((`(,proposal . ,text) undelivered))
    (setq qwen-companion-proposal--undelivered
          (delq undelivered qwen-companion-proposal--undelivered))
    (setf (qwen-companion-proposal-state proposal) 'closed)
    (when text
      (when (qwen-companion-proposal-write proposal)
        (qwen-companion-proposal--forget-write proposal))
      (when (qwen-companion-proposal-edited proposal)
        (qwen-companion-proposal--recreate-buffer proposal text)
        (qwen-companion-proposal--rescue proposal reason)))
    text))

(defun qwen-companion-proposal--recreate-buffer (proposal text)
  "Give PROPOSAL, whose buffer was killed, a new one with TEXT."
  (let ((buffer (qwen-companion-proposal-make-buffer proposal "proposal")))
    (setf (qwen-companion-proposal-buffer proposal) buffer)
    (with-current-buffer buffer
      (insert (string-replace
               (qwen-companion-proposal-line-end proposal) "\n"
               (string-remove-prefix (qwen-companion-proposal-bom proposal)
                                     text)))
      (set-buffer-modified-p (qwen-companion-proposal-edited proposal)))))

(defun qwen-companion-proposal--deliver (undelivered)
  "Send the outcome UNDELIVERED, (PROPOSAL . TEXT), to the CLI."
  (pcase-let ((`(,proposal . ,text) undelivered))
    (qwen-companion-backend-call
     'outcome
     (append (list :id (qwen-companion-proposal-id proposal)
                   :outcome (qwen-companion-proposal-state proposal))
             (when text (qwen-companion-backend-pack-text text))))))

(defconst qwen-companion-proposal--redeliver-delay 2
  "Seconds until an outcome is sent again that could not be taken.")

(defvar qwen-companion-proposal--redeliver-timer nil
  "Timer that sends outcomes again, nil while all were taken.")

(defun qwen-companion-proposal-on-call-failed (method _payload)
  "Send the outcomes again in a while when METHOD was to take one.
The Python process could not read its text, for instance."
  (when (and (eq method 'outcome) (not qwen-companion-proposal--redeliver-timer))
    (setq qwen-companion-proposal--redeliver-timer
          (run-at-time qwen-companion-proposal--redeliver-delay nil
                       (lambda ()
                         (setq qwen-companion-proposal--redeliver-timer nil)
                         (qwen-companion-proposal-resend))))))

(defun qwen-companion-proposal-resend ()
  "Tell a Python process that has just come up the outcomes it may lack."
  (mapc #'qwen-companion-proposal--deliver
        (reverse qwen-companion-proposal--undelivered)))

(defun qwen-companion-proposal-known ()
  "Return the open proposals for a Python process about to start.
A list of property lists (:id :session :path :digest); those whose
outcome is not delivered are still open for it."
  (mapcar (lambda (proposal)
            (list :id (qwen-companion-proposal-id proposal)
                  :session (qwen-companion-proposal-session proposal)
                  :path (qwen-companion-proposal-path proposal)
                  :digest (qwen-companion-proposal-digest proposal)))
          (append (mapcar #'car qwen-companion-proposal--undelivered)
                  qwen-companion-proposal--open)))

(defun qwen-companion-proposal-end-all ()
  "End all reviews because the companion stops.
Nothing is answered: the CLI still asks in its terminal.  Texts the
user has edited are kept."
  (dolist (proposal (copy-sequence qwen-companion-proposal--open))
    (qwen-companion-proposal--end proposal 'closed)
    (qwen-companion-proposal--rescue-or-kill proposal "the companion was turned off"))
  (mapc #'qwen-companion-proposal--forget-write (copy-sequence qwen-companion-proposal--awaited))
  (setq qwen-companion-proposal--undelivered nil)
  (when qwen-companion-proposal--redeliver-timer
    (cancel-timer qwen-companion-proposal--redeliver-timer)
    (setq qwen-companion-proposal--redeliver-timer nil))
  (qwen-companion-rescue-expect-nothing))

;;; Calls of the Python process

(defun qwen-companion-proposal-on-open (payload)
  "Take the proposal in PAYLOAD; return nil, or a string: why not.
One that is known is the same review, proposed again."
  (let ((id (plist-get payload :id))
        (path (plist-get payload :path))
        (session (plist-get payload :session)))
    (cond
     ((or (qwen-companion-proposal-by-id id)
          (qwen-companion-proposal--undelivered-by-id id))
      (qwen-companion-backend-drop-text payload)
      nil)
     (t
      (qwen-companion-proposal--supersede session path)
      (if-let* ((refusal (qwen-companion-proposal--refusal payload)))
          (progn (qwen-companion-backend-drop-text payload)
                 refusal)
        (qwen-companion-proposal--begin payload)
        nil)))))

(defun qwen-companion-proposal--refusal (payload)
  "Return why the proposal in PAYLOAD is not reviewed, a string, or nil."
  (let ((path (plist-get payload :path)))
    (if (or (not (file-name-absolute-p path)) (file-remote-p path))
        (format "Emacs reviews local files with absolute names only, not %s" path)
      (let* ((file-name-handler-alist nil)
             (size (max (qwen-companion-backend-text-size payload)
                        (or (file-attribute-size
                             (file-attributes (file-chase-links path)))
                            0))))
        (when (> size qwen-companion-diff-size-limit)
          (format "%s has %d bytes, and Emacs reviews at most %d (`qwen-companion-diff-size-limit').  Decide in the terminal instead"
                  path size qwen-companion-diff-size-limit))))))

(defun qwen-companion-proposal--begin (payload)
  "Begin the life of the proposal in PAYLOAD and announce it."
  (let* ((path (plist-get payload :path))
         (target (qwen-companion-risks-examine
                  path (qwen-companion-roots-published)))
         (proposal (qwen-companion-proposal--make
                    :id (plist-get payload :id)
                    :session (plist-get payload :session)
                    :client (if (string-empty-p (plist-get payload :client))
                                "the CLI"
                              (plist-get payload :client))
                    :path path
                    :real (car target)
                    :warning (cdr target)
                    :digest (plist-get payload :digest)
                    :ends-lines (plist-get payload :ends-lines)
                    :stamp (qwen-companion-disk-stamp path))))
    (setf (qwen-companion-proposal-checked proposal)
          (qwen-companion-proposal-stamp proposal))
    (qwen-companion-proposal--stop-write-timeout (qwen-companion-proposal-session proposal))
    (qwen-companion-proposal--fill proposal payload)
    (setq qwen-companion-proposal--open
          (append qwen-companion-proposal--open (list proposal)))
    (qwen-companion-proposal--compare-with-accepted proposal)
    (run-hook-with-args 'qwen-companion-proposal-begun-functions proposal)))

(defun qwen-companion-proposal--compare-with-accepted (proposal)
  "Find out whether PROPOSAL has what was accepted before and is not written yet.
If it lacks some of that, say so in the review."
  (when-let* ((earlier (qwen-companion-proposal-unwritten-before proposal))
              (mine (qwen-companion-proposal-forecast (car (last earlier))))
              ((stringp mine)))
    (let ((theirs (qwen-companion-proposal--plain-text (qwen-companion-proposal-text proposal))))
      (qwen-companion-merge-texts
       (qwen-companion-proposal--disk-text (qwen-companion-proposal-path proposal))
       mine theirs nil
       (lambda (merged)
         (unless (equal theirs (and merged (qwen-companion-merge-take-text merged theirs)))
           (setf (qwen-companion-proposal-note proposal)
                 (qwen-companion-proposal--note-lacking proposal earlier))
           (force-mode-line-update t)))))))

(defun qwen-companion-proposal--note-lacking (proposal earlier)
  "Return a note: PROPOSAL lacks some of EARLIER, proposals accepted before."
  (concat "lacks changes accepted before"
          (when (cl-some #'qwen-companion-proposal-edited earlier)
            (format ", and %s may fail to write it where you edited them"
                    (qwen-companion-proposal-client proposal)))))

(defun qwen-companion-proposal--supersede (session path)
  "End what SESSION has proposed for PATH: a newer proposal has come.
The CLI waits for the outcome of that one only, so one that is still on
its way is void."
  (let ((older-p (lambda (proposal)
                   (and (equal session (qwen-companion-proposal-session proposal))
                        (equal path (qwen-companion-proposal-path proposal))))))
    (when-let* ((older (cl-find-if older-p qwen-companion-proposal--open)))
      (qwen-companion-proposal--end older 'superseded t)
      (qwen-companion-proposal--rescue-or-kill older "a newer proposal has come"))
    (when-let* ((undelivered (cl-find-if older-p qwen-companion-proposal--undelivered
                                         :key #'car)))
      (qwen-companion-proposal--void
       undelivered "a newer proposal has come before the CLI knew that you had accepted"))))

(defun qwen-companion-proposal-on-close (payload)
  "Close the proposal in PAYLOAD, answered in the terminal.
Return its text as a payload, nil when it was not open or was rejected
here at the same time."
  (let* ((id (plist-get payload :id))
         (undelivered (qwen-companion-proposal--undelivered-by-id id))
         (proposal (or (car undelivered) (qwen-companion-proposal-by-id id))))
    (when proposal
      (let* ((reason (qwen-companion-proposal--why-closed
                      proposal (plist-get payload :keeps-edits)))
             (text (if undelivered
                       (qwen-companion-proposal--void undelivered reason)
                     (qwen-companion-proposal-text proposal))))
        (unless undelivered
          (qwen-companion-proposal--end proposal 'closed t)
          (qwen-companion-proposal--rescue-or-kill proposal reason t))
        (let ((kept (qwen-companion-proposal-buffer proposal)))
          (qwen-companion-proposal--await-write
           proposal text
           :optional t
           :stamp (qwen-companion-proposal-stamp proposal)
           :done (lambda (result _how)
                   (qwen-companion-rescue-waited kept result))))
        (qwen-companion-proposal--start-write-timeout (qwen-companion-proposal-session proposal))
        (and text (qwen-companion-backend-pack-text text))))))

(defun qwen-companion-proposal--why-closed (proposal keeps-edits)
  "Return a text for PROPOSAL, edited here and answered in the terminal.
KEEPS-EDITS says whether the CLI then writes the edits."
  (if keeps-edits
      "answered in the terminal"
    (format "answered in the terminal, where %s writes its own text without your edits"
            (qwen-companion-proposal-client proposal))))

(defun qwen-companion-proposal-on-orphan (payload)
  "Keep the text of the proposal in PAYLOAD: its CLI has gone.
It may have been accepted already, only that the CLI never got to know."
  (let* ((id (plist-get payload :id))
         (proposal (qwen-companion-proposal-by-id id))
         (undelivered (qwen-companion-proposal--undelivered-by-id id)))
    (cond
     (proposal
      (qwen-companion-proposal--end proposal 'orphaned t)
      (qwen-companion-proposal--rescue-orphan proposal))
     (undelivered
      (setq proposal (car undelivered))
      (setf (qwen-companion-proposal-edited proposal) nil)
      (when-let* ((text (qwen-companion-proposal--void undelivered nil)))
        (qwen-companion-proposal--recreate-buffer proposal text)
        (qwen-companion-proposal--rescue-orphan proposal))))
    (when proposal
      (qwen-companion-proposal--start-write-timeout (qwen-companion-proposal-session proposal)))
    nil))

(defun qwen-companion-proposal--rescue-orphan (proposal)
  "Keep the text of PROPOSAL, whose CLI has gone."
  (qwen-companion-proposal--rescue
   proposal
   (format "%s has gone before it could write %s"
           (qwen-companion-proposal-client proposal)
           (qwen-companion-proposal-display-path proposal))))

(defun qwen-companion-proposal--undelivered-by-id (id)
  "Return the outcome of the proposal ID that is not delivered, or nil."
  (cl-find id qwen-companion-proposal--undelivered :test #'equal
           :key (lambda (undelivered)
                  (qwen-companion-proposal-id (car undelivered)))))

(defun qwen-companion-proposal-on-delivered (payload)
  "Forget the outcome in PAYLOAD: the CLI has it."
  (when-let* ((undelivered (qwen-companion-proposal--undelivered-by-id
                            (plist-get payload :id))))
    (setq qwen-companion-proposal--undelivered
          (delq undelivered qwen-companion-proposal--undelivered))
    (qwen-companion-proposal--start-write-timeout
     (qwen-companion-proposal-session (car undelivered))))
  nil)

;;; Showing without disturbing

(defun qwen-companion-review--announce (proposal)
  "Say once that PROPOSAL has come, and see to it that it is shown."
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (qwen-companion-review-buffer-mode 1))
  (force-mode-line-update t)
  (message "qwen-companion: %s proposes a change of %s%s%s"
           (qwen-companion-untrusted-text
            (qwen-companion-proposal-client proposal))
           (qwen-companion-proposal-display-path proposal)
           (qwen-companion-review-warning-hint proposal)
           (if (and (qwen-companion-review--ediff-p) (not (qwen-companion-review-shown)))
               "; it waits until the Ediff session is over"
             ""))
  (qwen-companion-review-schedule)
  (run-hook-wrapped 'qwen-companion-attention-functions
                    #'qwen-companion-review--call-attention proposal))

(add-hook 'qwen-companion-proposal-begun-functions #'qwen-companion-review--announce)

(defun qwen-companion-review--call-attention (function proposal)
  "Call FUNCTION, one of the user's, with PROPOSAL; return nil.
The CLI is not to suffer from its errors."
  (condition-case err
      (funcall function proposal)
    (error
     (message "qwen-companion: error in `qwen-companion-attention-functions': %s"
              (error-message-string err))))
  nil)

(defun qwen-companion-review-schedule ()
  "See to it that the next unseen proposal is shown at a good moment.
Called after each change of the open proposals and of their states."
  (qwen-companion-review--unschedule)
  (when (and (qwen-companion-review--unseen)
             (memq qwen-companion-diff-arrival '(idle now)))
    (setq qwen-companion-review--timers
          ;; The second one is for what ends while no key comes.
          (list (run-with-idle-timer qwen-companion-review--idle-delay t
                                     #'qwen-companion-review--show-next)
                (run-at-time (if (eq qwen-companion-diff-arrival 'now)
                                 0
                               qwen-companion-review--idle-delay)
                             qwen-companion-review--idle-delay
                             #'qwen-companion-review--show-next))))
  (qwen-companion-review--watch-unsaved)
  (run-hooks 'qwen-companion-proposal-changed-hook))

(defun qwen-companion-review--unschedule ()
  "Stop waiting for a moment to show a proposal."
  (mapc #'cancel-timer qwen-companion-review--timers)
  (setq qwen-companion-review--timers nil))

(defun qwen-companion-review--unseen ()
  "Return the proposals that have not been shown yet, oldest first."
  (cl-remove-if #'qwen-companion-proposal-seen
                (qwen-companion-proposals)))

(defun qwen-companion-review-shown ()
  "Return the proposal that is on the screen, or nil."
  (cl-find-if (lambda (proposal)
                (and (eq (qwen-companion-proposal-state proposal) 'shown)
                     (qwen-companion-review-visible-p
                      (qwen-companion-proposal-style proposal) proposal)))
              (qwen-companion-proposals)))

(defun qwen-companion-review-terminals (proposal)
  "Return the terminal buffers that may be those of PROPOSAL's CLI.
One when that is known, else all in which one was started that may
change the file."
  (if-let* ((buffer (qwen-companion-review--own-terminal proposal)))
      (list buffer)
    (cl-remove-if-not
     (lambda (buffer)
       (file-in-directory-p (qwen-companion-proposal-path proposal)
                            (buffer-local-value 'default-directory buffer)))
     (qwen-companion-terminal-buffers))))

(defun qwen-companion-review--own-terminal (proposal)
  "Return the terminal buffer of PROPOSAL's CLI, or nil."
  (qwen-companion-terminal-session-buffer
   (qwen-companion-backend-session
    (qwen-companion-proposal-session proposal))))

(defun qwen-companion-review-seen-window (buffer)
  "Return a window of BUFFER that can be seen, or nil.
It may be on any terminal: `get-buffer-window' with the argument
`visible' knows the selected frame's only."
  (cl-find-if (lambda (window)
                (let ((frame (window-frame window)))
                  (and (qwen-companion-context-frame-p frame)
                       (eq t (frame-visible-p frame))
                       ;; A text terminal shows one of its frames.
                       (memq (tty-top-frame frame) (list nil frame)))))
              (get-buffer-window-list buffer 'nomini t)))

(defun qwen-companion-review-frame-for (proposal)
  "Return the frame in which PROPOSAL is to open by itself, or nil: not now.
That of its terminal, else the selected one.  When the terminal is in
a tab that is not selected there is none."
  (let ((terminals (qwen-companion-review-terminals proposal)))
    (if-let* ((window (cl-some #'qwen-companion-review-seen-window terminals)))
        (window-frame window)
      (unless (cl-some (lambda (buffer) (tab-bar-get-buffer-tab buffer t t))
                       terminals)
        (selected-frame)))))

(defvar ediff-session-registry)

(defun qwen-companion-review--busy-p ()
  "Return non-nil when a window change now would disturb the user."
  (or (active-minibuffer-window)
      (> (recursion-depth) 0)
      ;; A command waits for a key or a process, or a key sequence or its
      ;; argument is not complete.
      this-command
      prefix-arg
      (not (equal [] (this-single-command-keys)))
      (bound-and-true-p isearch-mode)
      (bound-and-true-p transient--prefix)
      executing-kbd-macro
      defining-kbd-macro
      track-mouse
      (not (qwen-companion-context-frame-p))
      (qwen-companion-review-shown)
      (qwen-companion-review--ediff-p)))

(defun qwen-companion-review--ediff-p ()
  "Return non-nil when an Ediff session is on the screen."
  (cl-some (lambda (buffer)
             (and (buffer-live-p buffer)
                  (get-buffer-window buffer 'visible)))
           (bound-and-true-p ediff-session-registry)))

(defun qwen-companion-review--display-quietly (buffer)
  "Show BUFFER in a window that is not selected, unless that would disturb."
  (unless (qwen-companion-review--busy-p)
    (display-buffer buffer '(nil (inhibit-same-window . t)))))

(defun qwen-companion-review--show-miswritten (buffer)
  "Show how the file differs from the text in BUFFER, accepted for it."
  (qwen-companion-rescue-compare buffer #'qwen-companion-review--display-quietly))

(add-hook 'qwen-companion-proposal-miswritten-functions
          #'qwen-companion-review--show-miswritten)

(defun qwen-companion-review--idle-p ()
  "Return non-nil when no input has come for long enough."
  (or (not (eq qwen-companion-diff-arrival 'idle))
      (when-let* ((idle (current-idle-time)))
        (>= (float-time idle) qwen-companion-review--idle-delay))))

(defun qwen-companion-review--show-next ()
  "Show the oldest unseen proposal that can be, unless that would disturb."
  (when (and (qwen-companion-review--idle-p)
             (not (qwen-companion-review--busy-p)))
    (when-let* ((proposal (cl-find-if #'qwen-companion-review-frame-for
                                      (qwen-companion-review--unseen))))
      (qwen-companion-review--display proposal qwen-companion-diff-select))))

(defun qwen-companion-review--display (proposal select)
  "Show PROPOSAL; SELECT non-nil means to select it."
  (setf (qwen-companion-proposal-seen proposal) t)
  (unless (qwen-companion-proposal-style proposal)
    (setf (qwen-companion-proposal-style proposal)
          ;; A CLI that was offered reviews before the user wanted none.
          (or qwen-companion-diff-style 'ediff)))
  (condition-case err
      (progn
        (unless (qwen-companion-proposal-disk-buffer proposal)
          (qwen-companion-review--prepare proposal))
        (setf (qwen-companion-proposal-state proposal) 'shown)
        (qwen-companion-review-show (qwen-companion-proposal-style proposal) proposal select))
    (error (qwen-companion-review-fall-back proposal err select)))
  ;; What shows it lets timers and processes run, and one may end it.
  (unless (qwen-companion-proposal-open-p proposal)
    (qwen-companion-review-hide (qwen-companion-proposal-style proposal) proposal))
  (qwen-companion-review-schedule))

(defun qwen-companion-review-fall-back (proposal err select)
  "Show PROPOSAL hunk by hunk, because its front end failed with ERR.
SELECT non-nil means to select the review.  If that one cannot show it
either, the proposal waits."
  (when (qwen-companion-proposal-open-p proposal)
    (let ((style (qwen-companion-proposal-style proposal)))
      (setf (qwen-companion-proposal-state proposal) 'pending)
      (qwen-companion-review-hide style proposal)
      (if (eq style 'unified)
          (message "qwen-companion: the review of %s could not be shown (%s); the proposal is in %s"
                   (qwen-companion-proposal-display-path proposal)
                   (error-message-string err)
                   (buffer-name (qwen-companion-proposal-buffer proposal)))
        (setf (qwen-companion-proposal-style proposal) 'unified)
        (qwen-companion-review--display proposal select)
        (message "qwen-companion: Ediff cannot show %s (%s); here it is hunk by hunk"
                 (qwen-companion-proposal-display-path proposal)
                 (error-message-string err))))))

(defun qwen-companion-review-frame-deleted (frame)
  "Let the review that was shown in FRAME, which is gone, come again."
  (dolist (proposal (copy-sequence (qwen-companion-proposals)))
    (when (and (eq (qwen-companion-proposal-state proposal) 'shown)
               (eq frame (qwen-companion-review-frame
                          (qwen-companion-proposal-style proposal) proposal)))
      (setf (qwen-companion-proposal-state proposal) 'pending
            (qwen-companion-proposal-seen proposal) nil)
      (qwen-companion-review-hide (qwen-companion-proposal-style proposal) proposal)
      (qwen-companion-review-schedule))))

(defun qwen-companion-diff-bury ()
  "Put the review aside; the proposal stays pending.
\\[qwen-companion-diff-open] brings it back."
  (interactive)
  (let ((proposal (qwen-companion-review--find nil "put aside")))
    (when (eq (qwen-companion-proposal-state proposal) 'shown)
      (setf (qwen-companion-proposal-state proposal) 'pending)
      (qwen-companion-review-hide (qwen-companion-proposal-style proposal) proposal))
    (qwen-companion-review-schedule)
    (message "qwen-companion: %s waits for your answer (M-x qwen-companion-review)"
             (qwen-companion-proposal-display-path proposal))))

;;; Commands

(defun qwen-companion-review--find (file verb)
  "Return the open proposal a command shall VERB (a string).
FILE is a file name, a proposal, or nil for the current buffer's (in a
terminal, that of its CLI), else the only one.  Signal a `user-error'
when there is none or several."
  (let ((candidates
         (cond
          ((qwen-companion-proposal-p file) (list file))
          (file
           (let ((path (expand-file-name file)))
             (cl-remove path (qwen-companion-proposals) :test-not #'equal
                        :key #'qwen-companion-proposal-path)))
          (t (qwen-companion-review--here)))))
    (cond
     ((null candidates)
      (user-error (if file "Nothing is proposed for %s" "Nothing to %s: no proposal waits")
                  (if file (abbreviate-file-name file) verb)))
     ((cdr candidates)
      (user-error "Which one to %s?  %d proposals wait: %s" verb
                  (length candidates)
                  (mapconcat #'qwen-companion-proposal-display-path candidates ", ")))
     ((not (qwen-companion-proposal-open-p (car candidates)))
      (user-error "The proposal for %s is %s already"
                  (qwen-companion-proposal-display-path (car candidates))
                  (qwen-companion-proposal-state (car candidates))))
     (t (car candidates)))))

(defun qwen-companion-review-of-terminal (buffer)
  "Return the open proposals of the CLI in BUFFER, oldest first."
  (cl-remove-if-not
   (lambda (proposal)
     (eq buffer (qwen-companion-review--own-terminal proposal)))
   (qwen-companion-proposals)))

(defun qwen-companion-review--here ()
  "Return the proposals that a command in the current buffer may be about."
  (if qwen-companion-proposal-current
      (list qwen-companion-proposal-current)
    (or (qwen-companion-review-of-terminal (current-buffer))
        (qwen-companion-proposals))))

(defun qwen-companion-review--read (verb)
  "Return what the user wants to VERB: ask only when it is ambiguous."
  (let ((candidates (qwen-companion-review--here)))
    (when (cdr candidates)
      (let ((choices (qwen-companion-review--choices candidates)))
        (alist-get (completing-read (format "%s which proposal: " verb)
                                    choices nil t)
                   choices nil nil #'equal)))))

(defun qwen-companion-review--choices (proposals)
  "Return an alist of PROPOSALS by labels, each of which is another one."
  (let (choices)
    (dolist (proposal proposals (nreverse choices))
      (let* ((label (format "%s (%s)"
                            (qwen-companion-proposal-display-path proposal)
                            (qwen-companion-untrusted-text
                             (qwen-companion-proposal-client proposal))))
             (distinct label)
             (number 1))
        (while (assoc distinct choices)
          (setq distinct (format "%s <%d>" label (cl-incf number))))
        (push (cons distinct proposal) choices)))))

;;;###autoload
(defun qwen-companion-diff-accept (&optional file)
  "Accept a proposal as it stands, with your edits; the CLI writes it.
It is the one the current buffer is about, else the only one that
waits; FILE names another one by its file."
  (interactive (list (qwen-companion-review--read "Accept")))
  (let* ((proposal (qwen-companion-review--find file "accept"))
         (text (qwen-companion-proposal-text proposal))
         (odd (unencodable-char-position 0 (length text) 'utf-8 nil text)))
    (when (and (string-empty-p text)
               (not (qwen-companion-proposal-empty proposal)))
      (user-error "An emptied file cannot be said to the CLI: it would write its own text.  M-x qwen-companion-diff-empty rejects the proposal and empties the file's buffer"))
    (when odd
      (user-error "Character %d of the text cannot be encoded as UTF-8; remove it first"
                  (1+ odd)))
    (qwen-companion-review--check-disk proposal)
    (qwen-companion-proposal-decide proposal 'accepted text)
    (message "qwen-companion: accepted %s%s"
             (qwen-companion-proposal-display-path proposal)
             (if-let* ((others (qwen-companion-proposals-of-file
                                (qwen-companion-proposal-path proposal))))
                 (format "; the proposal of %s for it still waits"
                         (mapconcat #'qwen-companion-proposal-client others ", "))
               ""))))

;;;###autoload
(defun qwen-companion-diff-reject (&optional file)
  "Reject a proposal; nothing is written.
It is the one the current buffer is about, else the only one that
waits; FILE names another one by its file."
  (interactive (list (qwen-companion-review--read "Reject")))
  (let ((proposal (qwen-companion-review--find file "reject")))
    (qwen-companion-proposal-decide proposal 'rejected)
    (message "qwen-companion: rejected %s" (qwen-companion-proposal-display-path proposal))))

;;;###autoload
(defun qwen-companion-diff-empty (&optional file)
  "Reject a proposal and empty the buffer that visits its file.
That is one change to undo, and saving it is up to you.  It is for a
file that shall be empty, which cannot be said to a CLI.

It is the one the current buffer is about, else the only one that
waits; FILE names another one by its file."
  (interactive (list (qwen-companion-review--read "Empty the file of")))
  (let* ((proposal (qwen-companion-review--find file "reject"))
         (buffer (qwen-companion-disk-visit
                  (qwen-companion-proposal-path proposal))))
    (qwen-companion-proposal-decide proposal 'rejected)
    (with-current-buffer buffer
      (undo-boundary)
      (widen)
      (erase-buffer)
      ;; A file that is not there yet is to be saved as well.
      (set-buffer-modified-p t)
      (undo-boundary))
    (pop-to-buffer buffer)
    (message "qwen-companion: rejected; this buffer is empty, not saved yet")))

;;;###autoload
(defun qwen-companion-diff-open (&optional file)
  "Show the review of a proposal that waits, and select it.
It is the only one that waits; FILE names another one by its file."
  (interactive (list (qwen-companion-review--read "Review")))
  (let ((proposal (qwen-companion-review--find file "review"))
        (shown (qwen-companion-review-shown)))
    (when (and shown (not (eq shown proposal)))
      (setf (qwen-companion-proposal-state shown) 'pending)
      (qwen-companion-review-hide (qwen-companion-proposal-style shown) shown))
    (qwen-companion-review--display proposal t)))

;;;###autoload
(defun qwen-companion-diff-show-unsaved (&optional file)
  "Show your unsaved text as a third party of a review, or take it out again.
It is a copy of the text in the buffer that visits the file, as it is
now; nothing changes in that buffer, nor in the proposal.

It is for the proposal the current buffer is about, else the only one
that waits; FILE names another one by its file."
  (interactive (list (qwen-companion-review--read "Show your text beside")))
  (let ((proposal (qwen-companion-review--find file "compare with your text")))
    (qwen-companion-review-check-unsaved)
    (cond
     ((qwen-companion-proposal-yours-buffer proposal)
      (qwen-companion-review--drop-yours proposal))
     ((null (qwen-companion-proposal-unsaved proposal))
      (user-error "You have no unsaved text of %s"
                  (qwen-companion-proposal-display-path proposal)))
     (t
      (qwen-companion-review--make-yours proposal)
      (qwen-companion-review--update-third proposal)
      (unless (eq proposal (qwen-companion-review-shown))
        (qwen-companion-diff-open proposal))))))

;;;###autoload
(defun qwen-companion-diff-switch (&optional file)
  "Show the review of a proposal in the other front end, and select it.
It is the one the current buffer is about, else the only one that
waits; FILE names another one by its file.  See
`qwen-companion-diff-style'."
  (interactive (list (qwen-companion-review--read "Switch the review of")))
  (let* ((proposal (qwen-companion-review--find file "switch"))
         (style (qwen-companion-proposal-style proposal)))
    (when (eq (qwen-companion-proposal-state proposal) 'shown)
      (setf (qwen-companion-proposal-state proposal) 'pending)
      (qwen-companion-review-hide style proposal))
    (setf (qwen-companion-proposal-style proposal)
          (if (eq (or style qwen-companion-diff-style) 'unified)
              'ediff
            'unified))
    (qwen-companion-diff-open proposal)))

(provide 'qwen-companion-review)
;;; qwen-companion-review.el ends here
