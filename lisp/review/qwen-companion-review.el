;;; qwen-companion-review.el --- Show and answer the proposals of a CLI  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A review shows a proposal beside the text on disk, in one of the front
;; ends, as soon as that does not disturb the user; commands answer it.
;;
;; Both sides of a review are separate buffers, so the buffer that visits
;; the file is never locked or changed, and Emacs asks no questions about it.
;; The text is written by a model and untrusted: it chooses no mode, sets no
;; variable, and reaches no format string or mode line.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-completion)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-context)
(require 'qwen-companion-disk)
(require 'qwen-companion-header)
(require 'qwen-companion-list)
(require 'qwen-companion-merge)
(require 'qwen-companion-messages)
(require 'qwen-companion-options)
(require 'qwen-companion-places)
(require 'qwen-companion-proposal)
(require 'qwen-companion-rescue)
(require 'qwen-companion-roots)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-diff-arrival 'idle
  "When to show a proposal that has arrived.
`idle': after half a second without input.  `now': as soon as that does
not disturb you.  `command': only by \\[qwen-companion-diff-open].
It never opens during a command, in a minibuffer, a keyboard macro or
another Ediff session, or while its terminal is in an unselected tab."
  :group 'qwen-companion
  :type '(choice (const :tag "When idle" idle)
                 (const :tag "At once" now)
                 (const :tag "On command" command)))

(defcustom qwen-companion-diff-select nil
  "Non-nil means to select a review that opens by itself.
With nil the selected window stays selected."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-terminal-keys t
  "Non-nil means that terminals of `qwen-companion-run' get keys for reviews.
See `qwen-companion-review-keys-mode'.  Changes apply to new terminals."
  :group 'qwen-companion
  :type 'boolean)

(defconst qwen-companion-review--idle-delay 0.5
  "Seconds without input after which a proposal may open.")

;;; Front ends

(cl-defgeneric qwen-companion-review-show (style proposal select)
  "Show PROPOSAL with the front end STYLE, a symbol.
Its buffers exist already.  SELECT non-nil means to select the review;
else the selected window stays selected.  SELECT may be a slot from
`qwen-companion-review-slot'.  The STYLE `waiting' shows that the next
proposal of PROPOSAL's CLI is awaited; PROPOSAL has ended.")

(cl-defgeneric qwen-companion-review-slot (style proposal)
  "Return the slot of PROPOSAL on the screen, for another proposal.
It is a value for SELECT of `qwen-companion-review-show'.  STYLE is the
front end that shows PROPOSAL.")

(cl-defgeneric qwen-companion-review-hide (style proposal)
  "Remove the review of PROPOSAL from the windows and restore these.
STYLE is the front end that shows it.  Its buffers stay alive.")

(cl-defgeneric qwen-companion-review-control (proposal)
  "Return the buffer with the keys of PROPOSAL's review, or nil.")

(cl-defgeneric qwen-companion-review-refresh (style proposal)
  "Compare the two sides of PROPOSAL again if it is on the screen.
STYLE is the front end that shows it.")

(cl-defgeneric qwen-companion-review-fits-p (_style _proposal _select)
  "Return non-nil when STYLE has room to show PROPOSAL well.
SELECT is as in `qwen-companion-review-show'."
  t)

(cl-defgeneric qwen-companion-review-visible-p (style proposal)
  "Return non-nil when PROPOSAL is on the screen.
STYLE is the front end that shows it.")

(cl-defgeneric qwen-companion-review-frame (style proposal)
  "Return the frame in which PROPOSAL was shown last, live or not.
STYLE is the front end that shows it.")

(cl-defgeneric qwen-companion-review-update-sides (style proposal)
  "Show PROPOSAL with or without the copy of the user's unsaved text.
PROPOSAL is on the screen.  `qwen-companion-proposal-unsaved-copy' is a new
buffer, or nil when the copy on the screen is about to be killed.  STYLE
is the front end that shows PROPOSAL.")

(cl-defgeneric qwen-companion-review-unsaved-changed (_style _proposal)
  "Update STYLE when the user gains or loses unsaved text for PROPOSAL.
The header lines of the buffers update themselves."
  nil)

(cl-defgeneric qwen-companion-review-selection-changed (_style _proposal)
  "Update the review of PROPOSAL by STYLE after another window was selected.
The header lines of the buffers update themselves."
  nil)

(cl-defgeneric qwen-companion-review-style (_kind _proposal)
  "Return the special front end for a proposal of KIND, or nil."
  nil)

(cl-defgeneric qwen-companion-review-answer (_kind proposal)
  "Return the text of PROPOSAL to accept, as its buffer has it.
Signal a `user-error' if it cannot be accepted.  KIND is that of PROPOSAL."
  (qwen-companion-review-check-text proposal)
  (qwen-companion-review--check-disk proposal)
  ;; The user may have changed the line ends of its buffer.
  (qwen-companion-proposal-buffer-text proposal))

(cl-defgeneric qwen-companion-review-line-ends-changed (_style _proposal)
  "Update STYLE after a change of PROPOSAL's line ends or byte order mark.
The header lines of the buffers update themselves; see
`qwen-companion-proposal-line-end-summary'."
  nil)

;;; Buffers

(defun qwen-companion-review--if-read-only (command)
  "Return COMMAND if the current buffer, a side of a review, is read-only."
  (and buffer-read-only command))

(defvar qwen-companion-review-buffer-mode-map
  (apply
   #'qwen-companion-buffers-keymap
   "C-c C-c" #'qwen-companion-diff-accept
   "C-c C-n" #'qwen-companion-diff-accept-next
   "C-c C-k" #'qwen-companion-diff-reject
   "C-c C-u" #'qwen-companion-diff-show-unsaved
   "C-c C-l" #'qwen-companion-diff-toggle-line-ends
   "C-c C-w" #'qwen-companion-diff-show-warnings
   ;; The keys of the control panel, unless the side is being edited.
   (mapcan (lambda (key)
             (list key `(menu-item "" ,(if (equal key "e")
                                           #'qwen-companion-diff-edit
                                         #'qwen-companion-review-run-panel-key)
                                   :filter qwen-companion-review--if-read-only)))
           '("n" "p" "a" "k" "u" "]" "[" "M-n" "M-p" "TAB" "q" "?" "e")))
  "Keymap of the buffers of a review.")

(defun qwen-companion-review-run-panel-key ()
  "Run the command of this key in the control panel, or the hunks buffer."
  (interactive nil qwen-companion-review-buffer-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-review-buffer-mode)
  (let* ((keys (this-command-keys-vector))
         (side (selected-window))
         (buffer (current-buffer))
         (control (or (qwen-companion-review-control qwen-companion-proposal-current)
                      (user-error "This review is put aside; M-x qwen-companion-review reopens it")))
         (window (get-buffer-window control t)))
    (if window
        (select-window window)
      (set-buffer control))
    (let ((command (key-binding (vconcat (last (append keys nil))))))
      (when (keymapp command)
        (setq command (lookup-key command (vector (read-event (concat (key-description keys) "-"))))))
      (unless (commandp command)
        (user-error "%s is undefined in this review" (key-description keys)))
      (unwind-protect
          (call-interactively command)
        (when (and (window-live-p side)
                   (eq buffer (window-buffer side))
                   (eq window (selected-window)))
          (select-window side))))))

(defun qwen-companion-diff-edit ()
  "Edit the proposal of this review in its buffer.
Keys then insert text; \\[read-only-mode] restores the keys of the review."
  (interactive)
  (let ((buffer (qwen-companion-proposal-buffer (qwen-companion-review--find nil "edit"))))
    (if-let* ((window (get-buffer-window buffer t)))
        (select-window window)
      (pop-to-buffer buffer))
    (setq buffer-read-only nil)
    (force-mode-line-update)
    (message "%s" (substitute-command-keys
                   "\\[qwen-companion-diff-accept] accepts with your edits; \\[read-only-mode] restores the keys of the review"))))

(define-minor-mode qwen-companion-review-buffer-mode
  "Minor mode of the buffers of a review.

\\{qwen-companion-review-buffer-mode-map}"
  :interactive nil
  :lighter nil
  (if qwen-companion-review-buffer-mode
      (progn
        (add-hook 'kill-buffer-query-functions #'qwen-companion-review--query-kill nil t)
        (add-hook 'kill-buffer-hook #'qwen-companion-review--buffer-killed nil t))
    (remove-hook 'kill-buffer-query-functions #'qwen-companion-review--query-kill t)
    (remove-hook 'kill-buffer-hook #'qwen-companion-review--buffer-killed t)))

(defun qwen-companion-review--query-kill ()
  "Put the review aside and return nil, so that its side is not killed.
Return non-nil if killing the current buffer loses nothing."
  (or (not (qwen-companion-proposal-open-p qwen-companion-proposal-current))
      (eq (current-buffer)
          (qwen-companion-proposal-unsaved-copy qwen-companion-proposal-current))
      (ignore (qwen-companion-diff-bury))))

(defun qwen-companion-review--buffer-killed ()
  "Clean up after this buffer of a review, which is being killed.
Remove a copy of unsaved text from the review.  Reject a proposal whose
buffer is killed without its query functions being called."
  (let ((proposal qwen-companion-proposal-current))
    (cond
     ((eq (current-buffer) (qwen-companion-proposal-unsaved-copy proposal))
      (setf (qwen-companion-proposal-unsaved-copy proposal) nil)
      (qwen-companion-review--update-sides proposal))
     ((qwen-companion-proposal-open-p proposal)
      (qwen-companion-proposal-decide proposal 'rejected)))))

(defun qwen-companion-review--set-mode (path)
  "Set the major mode of the current buffer, a side of a review, by PATH."
  (let ((proposal qwen-companion-proposal-current))
    (qwen-companion-untrusted-set-major-mode path)
    ;; The major mode has killed local variables.
    (setq qwen-companion-proposal-current proposal)
    (when (eq (current-buffer) (qwen-companion-proposal-buffer proposal))
      (qwen-companion-proposal-protect-draft proposal))
    (qwen-companion-review-buffer-mode 1)))

(defun qwen-companion-review--insert-disk (proposal)
  "Insert the text on disk into the current buffer, in the line ends of PROPOSAL.
If another CLI has proposed a text before, insert that text."
  (let ((path (qwen-companion-proposal-path proposal)))
    (when-let* ((earlier (qwen-companion-proposal-earlier proposal)))
      (insert (qwen-companion-proposal-base earlier)))
    (pcase-let ((`(,coding . ,line-end)
                 (when (and (qwen-companion-proposal-file-p proposal)
                            (not (file-directory-p path)))
                   (qwen-companion-disk-insert-unified
                    path (qwen-companion-disk-named-coding path)))))
      (qwen-companion-proposal-align-line-ends
       proposal line-end
       (cond ((null coding) (and (file-regular-p path) ""))
             ((eq 'utf-8-with-signature (coding-system-base coding)) "\ufeff")
             ((memq (coding-system-type coding) '(utf-8 undecided)) ""))))
    (when-let* ((left (qwen-companion-proposal-earlier-text-of-others proposal)))
      (erase-buffer)
      (insert (cdr left)))))

(defun qwen-companion-review--disk-side (proposal)
  "Return a description of the text on the disk side of PROPOSAL."
  (let ((left (qwen-companion-proposal-earlier-text-of-others proposal)))
    (cond (left (format "with the change by %s" (car left)))
          ((qwen-companion-proposal-earlier proposal) "previous plan")
          ((file-exists-p (qwen-companion-proposal-path proposal)) "on disk")
          (t "not on disk yet"))))

(defun qwen-companion-review--show-disk-instead (ended)
  "Replace the text of ENDED by the text on disk in other reviews of its file.
If ENDED was accepted, its text stays there."
  (dolist (proposal (qwen-companion-proposals-of-others ended))
    (when-let* ((disk (qwen-companion-proposal-disk-buffer proposal)))
      (with-temp-buffer
        (qwen-companion-review--insert-disk proposal)
        (let ((source (current-buffer)))
          (with-current-buffer disk
            (let ((inhibit-read-only t))
              (replace-buffer-contents source 0.1))
            (set-buffer-modified-p nil)
            (qwen-companion-review--set-header
             (qwen-companion-review--disk-side proposal)))))
      (when-let* ((style (qwen-companion-proposal-style proposal)))
        (qwen-companion-review-refresh style proposal)))))

(defun qwen-companion-review--prepare (proposal)
  "Make the disk side of PROPOSAL and set up both buffers.
The disk side is the text from which the CLI has made its proposal.  It
lacks accepted proposals of this CLI that are not written yet, since the
CLI has not seen them either.  If another CLI has proposed a text before,
the disk side is that text: accepting both applies the difference."
  (let ((path (qwen-companion-proposal-path proposal))
        (disk (qwen-companion-proposal-make-buffer proposal "disk")))
    (setf (qwen-companion-proposal-disk-buffer proposal) disk)
    (with-current-buffer disk
      (qwen-companion-review--insert-disk proposal)
      (goto-char (point-min))
      (qwen-companion-review--set-mode path)
      (set-buffer-modified-p nil)
      (setq buffer-read-only t)
      (qwen-companion-review--set-header (qwen-companion-review--disk-side proposal)))
    (qwen-companion-proposal-examine proposal)
    (when (qwen-companion-proposal-file-p proposal)
      (qwen-companion-review--note-writes proposal)
      (qwen-companion-review--watch-disk proposal))
    (setf (qwen-companion-proposal-lossy proposal)
          (qwen-companion-review--loses-text-p proposal))
    (with-current-buffer (qwen-companion-proposal-buffer proposal)
      (let ((modified (buffer-modified-p)))
        (qwen-companion-review--set-mode path)
        (set-buffer-modified-p modified))
      ;; A plan is edited in this buffer.
      (setq buffer-read-only (qwen-companion-proposal-file-p proposal))
      (qwen-companion-review--set-header "proposed"))))

(defun qwen-companion-review--loses-text-p (proposal)
  "Return non-nil when the CLI of PROPOSAL could not decode all of the file.
Some CLIs read every file as UTF-8, with U+FFFD for invalid bytes."
  (let ((lost-p (lambda (buffer)
                  (with-current-buffer buffer
                    (unless (qwen-companion-untrusted-ascii-p)
                      (save-excursion
                        (goto-char (point-min))
                        (search-forward "\ufffd" nil t)))))))
    (and (funcall lost-p (qwen-companion-proposal-buffer proposal))
         (not (funcall lost-p (qwen-companion-proposal-disk-buffer proposal))))))

;;; Line ends and the byte order mark

(defun qwen-companion-diff-toggle-line-ends (&optional file)
  "Toggle between the line ends and byte order mark on disk and those proposed.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one."
  (interactive (list (qwen-companion-review--read "Change the line ends of")))
  (let ((proposal (qwen-companion-review--find file "change")))
    (unless (qwen-companion-proposal-line-end-summary proposal)
      (user-error "The proposal does not change the line ends of %s"
                  (qwen-companion-proposal-display-path proposal)))
    (qwen-companion-proposal-set-line-ends
     proposal (not (qwen-companion-proposal-as-on-disk proposal)))
    (force-mode-line-update t)
    (qwen-companion-review-line-ends-changed
     (qwen-companion-proposal-style proposal) proposal)
    (run-hooks 'qwen-companion-proposal-changed-hook)))

(defun qwen-companion-review--hidden-warning (proposal)
  "Return the warning of hidden characters in new lines of PROPOSAL, or nil.
Search again when the text on disk has changed, and after an edit only
when there was a warning."
  (when-let* ((new (qwen-companion-proposal-buffer proposal))
              (old (qwen-companion-proposal-disk-buffer proposal))
              (ticks (cons (buffer-chars-modified-tick old) (buffer-chars-modified-tick new))))
    (pcase-let ((`(,seen . ,warning) (qwen-companion-proposal-hidden proposal)))
      (unless (if warning (equal ticks seen) (eql (car ticks) (car seen)))
        (setq warning (with-current-buffer new (qwen-companion-untrusted-hidden-warning old)))
        (setf (qwen-companion-proposal-hidden proposal) (cons ticks warning)))
      warning)))

;;; Warnings and origin

(defun qwen-companion-review--rival-warning (proposal)
  "Return the warning that another CLI works on the file of PROPOSAL, or nil.
That CLI proposes a change of the file, or has changed it in a running turn."
  (if-let* ((rival (car (qwen-companion-proposals-of-others proposal))))
      (format "%s also proposes a change" (qwen-companion-proposal-client rival))
    (when-let* ((client (run-hook-with-args-until-success
                         'qwen-companion-proposal-rival-functions proposal)))
      (format "%s is also changing it" client))))

(defun qwen-companion-review-warning-parts (proposal)
  "Return the warnings about accepting PROPOSAL.
They are parts of `qwen-companion-header-line' that are never left out.
Some name a key, and some have a shorter form for little room."
  (let ((line-ends (qwen-companion-proposal-line-end-summary proposal)))
    (append
     (mapcar
      (lambda (warning)
        (cons nil (and warning (qwen-companion-review--warning warning))))
      (list (and (qwen-companion-proposal-lossy proposal) "loses text (U+FFFD)")
            (qwen-companion-proposal-warning proposal)
            (qwen-companion-review--rival-warning proposal)
            (qwen-companion-proposal-note proposal)
            (when-let* ((conflicts (with-current-buffer (qwen-companion-proposal-buffer proposal)
                                     (qwen-companion-conflicts-lighter))))
              (string-trim-left conflicts))
            (and (qwen-companion-proposal-edited-p proposal)
                 (qwen-companion-proposal-unwritten-before proposal)
                 (format "%s may fail to write your edits"
                         (qwen-companion-proposal-client proposal)))
            (qwen-companion-review--hidden-warning proposal)))
     (mapcar
      (pcase-lambda (`(,command ,long ,short))
        (cons nil (and long
                       (cons (qwen-companion-review--warning long command)
                             (qwen-companion-review--warning short command)))))
      `((qwen-companion-diff-show-unsaved
         ,(cond ((qwen-companion-proposal-unsaved-copy proposal) "hide your unsaved text")
                ((qwen-companion-proposal-unsaved proposal) "your unsaved text"))
         "unsaved")
        (qwen-companion-diff-toggle-line-ends
         ,line-ends
         ,(and line-ends (mapconcat (lambda (change) (car (split-string change ":")))
                                    (split-string line-ends "; ") ", "))))))))

(defun qwen-companion-review--warning (text &optional command)
  "Return TEXT as a warning in a header line, with the key of COMMAND, if any."
  (let ((warning (propertize (qwen-companion-untrusted-text text) 'face 'warning)))
    (if command
        (qwen-companion-header-key command warning)
      warning)))

(defun qwen-companion-review--client (proposal)
  "Return the name of the CLI of PROPOSAL without its version."
  (replace-regexp-in-string
   ;; The list of proposals shows the version.
   " [0-9][0-9.]*\\'" ""
   (qwen-companion-untrusted-text (qwen-companion-proposal-client proposal))))

(defun qwen-companion-review-origin-parts (proposal)
  "Return where PROPOSAL comes from, as parts of `qwen-companion-header-line'.
These are its CLI, whether the user has edited it, its project, and its
number among the CLI's open proposals."
  (let* ((root (qwen-companion-roots-of default-directory))
         (turn (qwen-companion-review-of-session proposal))
         (count (length turn)))
    `((2 . ,(format "by %s" (qwen-companion-review--client proposal)))
      (25 . ,(and (qwen-companion-proposal-edited-p proposal) "edited by you"))
      (30 . ,(and root (format "in %s" (qwen-companion-untrusted-path
                                       (file-name-nondirectory root)))))
      (1 . ,(and (> count 1)
                 (format "%d of %d" (1+ (cl-position proposal turn)) count)))
      (0 . ,(and (qwen-companion-review--only-space-p proposal) "white space only")))))

(defconst qwen-companion-review--most-spaces 1000
  "Differences in white space after which the comparison stops.")

(defconst qwen-companion-review--space-limit 200000
  "Characters above which a proposal is not checked for white space.")

(defvar-local qwen-companion-review--only-space nil
  "Whether white space alone differs in the current proposal: (TICKS . ANSWER).")

(defun qwen-companion-review--only-space-p (proposal)
  "Return non-nil when PROPOSAL differs from the disk only in white space."
  (let ((old (qwen-companion-proposal-disk-buffer proposal))
        (new (qwen-companion-proposal-buffer proposal)))
    (when (and (buffer-live-p old) (buffer-live-p new)
               (< (buffer-size new) qwen-companion-review--space-limit))
      (with-current-buffer new
        (let ((ticks (cons (buffer-chars-modified-tick old) (buffer-chars-modified-tick new))))
          (unless (equal ticks (car qwen-companion-review--only-space))
            (setq qwen-companion-review--only-space
                  (cons ticks (qwen-companion-review--compare-words old new))))
          (cdr qwen-companion-review--only-space))))))

(defun qwen-companion-review--compare-words (old new)
  "Return non-nil when the buffers OLD and NEW differ only in white space."
  (let ((places 0) (a 1) (b 1) (same t) step)
    (cl-flet ((skip (buffer place)
                (with-current-buffer buffer
                  (qwen-companion-buffers-widened
                    (goto-char place)
                    (skip-chars-forward "[:space:]")
                    (point)))))
      (while (and same
                  (/= 0 (setq step (let ((case-fold-search nil))
                                     (with-current-buffer old
                                       (qwen-companion-buffers-widened
                                         (compare-buffer-substrings old a nil new b nil)))))))
        (let* ((a-end (+ a (1- (abs step)))) (b-end (+ b (1- (abs step)))))
          (setq a (skip old a-end)
                b (skip new b-end)
                same (and (< (cl-incf places) qwen-companion-review--most-spaces)
                          (not (and (= a a-end) (= b b-end))))))))
    (and same (> places 0))))

(defun qwen-companion-review-of-session (proposal)
  "Return the open proposals of the session of PROPOSAL, oldest first."
  (cl-remove (qwen-companion-proposal-session proposal) (qwen-companion-proposals)
             :key #'qwen-companion-proposal-session :test-not #'equal))

;;; The disk side

(defun qwen-companion-review--watch-disk (proposal)
  "Keep the disk side of PROPOSAL up to date, even if its file is not visited."
  (qwen-companion-review--unwatch-disk proposal)
  (let ((path (qwen-companion-proposal-path proposal)))
    (setf (qwen-companion-proposal-watch proposal)
          (qwen-companion-disk-watch
           path
           (lambda ()
             ;; Events of other files in the directory cost little.
             (unless (or (not (qwen-companion-proposal-open-p proposal))
                         (equal (qwen-companion-proposal-stamp proposal)
                                (qwen-companion-disk-stamp path)))
               (qwen-companion-review-file-written path)))))))

(defun qwen-companion-review--unwatch-disk (proposal)
  "Stop watching the file of PROPOSAL."
  (when-let* ((watch (qwen-companion-proposal-watch proposal)))
    (setf (qwen-companion-proposal-watch proposal) nil)
    (qwen-companion-disk-unwatch watch)))

(defun qwen-companion-review-file-written (path)
  "Update the reviews of the file PATH if it was written.
Merge the written text into the proposed text if possible."
  (dolist (proposal (qwen-companion-proposals-of-file path))
    (let ((stamp (qwen-companion-disk-stamp (qwen-companion-proposal-path proposal)))
          (disk (qwen-companion-proposal-disk-buffer proposal)))
      (unless (equal stamp (qwen-companion-proposal-stamp proposal))
        (setf (qwen-companion-proposal-stamp proposal) stamp)
        (when disk
          (with-temp-buffer
            (qwen-companion-review--insert-disk proposal)
            (qwen-companion-review--refresh-disk proposal (current-buffer)))
          (qwen-companion-review--examine proposal)
          (qwen-companion-review-line-ends-changed
           (qwen-companion-proposal-style proposal) proposal)
          (qwen-companion-review--merge-file proposal))))))

(defun qwen-companion-review--unmerged-p (proposal)
  "Return non-nil when later writes to PROPOSAL's file are not merged into it."
  (let ((path (qwen-companion-proposal-path proposal)))
    (and (qwen-companion-proposal-file-p proposal)
         (not (equal (qwen-companion-proposal-stamp proposal)
                     (car (qwen-companion-proposal-origin proposal))))
         (file-exists-p path)
         (not (file-directory-p path)))))

(defun qwen-companion-review--merge-file (proposal &optional mark)
  "Merge later writes to the file of PROPOSAL into the proposed text.
Return nil if there is nothing to merge; else return non-nil at once, and
merge asynchronously.  If both changed the same lines, mark the conflicts
if MARK is non-nil; else only warn in the review."
  (when (qwen-companion-review--unmerged-p proposal)
    (pcase-let* ((file (qwen-companion-proposal-read-file proposal))
                 (buffer (qwen-companion-proposal-buffer proposal))
                 (tick (buffer-chars-modified-tick buffer))
                 (`(,base ,theirs)
                  (mapcar (lambda (text)
                            (if (or (null text) (qwen-companion-proposal-exact proposal))
                                text
                              (qwen-companion-disk-unix-text text)))
                          (list (cdr (qwen-companion-proposal-origin proposal)) (cdr file)))))
      (cond
       ((and theirs (or (equal base theirs)
                        (equal theirs (qwen-companion-buffers-text buffer))))
        (qwen-companion-review--adopt-file proposal file)
        nil)
       ((and base theirs)
        (qwen-companion-merge-texts
         base buffer theirs qwen-companion-conflicts-proposal-labels
         (lambda (merged)
           (cond
            ((not (qwen-companion-proposal-open-p proposal)))
            ((null merged)
             (qwen-companion-review--refuse-merge proposal mark))
            ((/= tick (buffer-chars-modified-tick buffer))
             (qwen-companion-review--merge-file proposal mark))
            ((or mark (= 0 (qwen-companion-merge-result-conflicts merged)))
             (qwen-companion-review--adopt-merge proposal file merged theirs))
            (t
             (qwen-companion-review--set-note
              proposal "same lines changed since")))))
        t)
       (t
        (qwen-companion-review--refuse-merge proposal mark)
        t)))))

(defun qwen-companion-review--refuse-merge (proposal tell)
  "Warn in the review of PROPOSAL that later writes to its file cannot be merged.
TELL non-nil means to show a message too."
  (qwen-companion-review--set-note proposal "changed since, cannot be merged")
  (when tell
    (message "qwen-companion: %s changed on disk and cannot be merged with the proposal; reject it, so that %s reads the file again"
             (qwen-companion-proposal-display-path proposal)
             (qwen-companion-untrusted-text (qwen-companion-proposal-client proposal)))))

(defun qwen-companion-review--adopt-file (proposal file)
  "Make FILE the origin of the proposed text of PROPOSAL.
FILE is as in `qwen-companion-proposal-read-file'."
  (setf (qwen-companion-proposal-origin proposal) file)
  (unless (eq 'unseen (qwen-companion-proposal-checked proposal))
    (setf (qwen-companion-proposal-checked proposal) (car file))))

(defun qwen-companion-review--adopt-merge (proposal file merged theirs)
  "Apply the edits of MERGED to the proposed text of PROPOSAL, and show them.
FILE is the merged file, as in `qwen-companion-proposal-read-file', and
THEIRS its text."
  (let ((conflicts (qwen-companion-merge-result-conflicts merged))
        (edits (length (qwen-companion-merge-result-edits merged))))
    (qwen-companion-review--adopt-file proposal file)
    (with-current-buffer (qwen-companion-proposal-buffer proposal)
      (qwen-companion-merge-apply merged theirs)
      (qwen-companion-untrusted-show-hidden)
      (when (> conflicts 0)
        (qwen-companion-conflicts-begin nil nil nil)
        (message "qwen-companion: %d conflict%s between the proposal for %s and the file on disk; resolve, then accept"
                 conflicts (if (= conflicts 1) "" "s")
                 (qwen-companion-proposal-display-path proposal))))
    (qwen-companion-review--set-note
     proposal (and (> edits 0) (= conflicts 0) "merged with later writes"))
    (when-let* ((style (qwen-companion-proposal-style proposal)))
      (qwen-companion-review-refresh style proposal))
    (run-hooks 'qwen-companion-proposal-changed-hook)))

(defun qwen-companion-review--set-note (proposal note)
  "Show NOTE, a string or nil, in the header lines of PROPOSAL."
  (setf (qwen-companion-proposal-note proposal) note)
  (force-mode-line-update t))

(defun qwen-companion-review--examine (proposal)
  "Examine the file of PROPOSAL for risks again.
If there is a new risk, refuse the next acceptance."
  (when (qwen-companion-proposal-examine proposal)
    (setf (qwen-companion-proposal-checked proposal) 'unseen)
    (force-mode-line-update t)))

(defconst qwen-companion-review--changes-on-disk
  '((same "on disk, as proposed" nil)
    (changed "on disk, changed since" "changed since")
    (deleted "deleted from disk" "deleted since"
             "was deleted or renamed after the proposal; accept again to create it anew")
    (directory "a directory on disk" "a directory since"
               "has become a directory, which the CLI cannot write; accept again to try"))
  "States of a file on disk: a list of (KIND SIDE NOTE SENTENCE).
SIDE describes the disk side, NOTE warns in a header line, and SENTENCE,
after the file name, is the message when the proposal is accepted.")

(defun qwen-companion-review--change-on-disk (proposal)
  "Return the state of PROPOSAL's file, which has changed since it was proposed.
The value is an entry of `qwen-companion-review--changes-on-disk'.  The disk
side has the current text of the file."
  (let ((path (qwen-companion-proposal-path proposal))
        (disk (qwen-companion-proposal-disk-buffer proposal)))
    (assq (cond ((file-directory-p path) 'directory)
                ((not (file-exists-p path)) 'deleted)
                ((and disk
                      (null (qwen-companion-proposal-earlier-text-of-others proposal))
                      (null (qwen-companion-proposal-line-end-summary proposal))
                      (with-current-buffer disk
                        (qwen-companion-disk-same-text-p
                         (qwen-companion-proposal-buffer proposal))))
                 'same)
                (t 'changed))
          qwen-companion-review--changes-on-disk)))

(defun qwen-companion-review--refresh-disk (proposal source)
  "Replace the text of PROPOSAL's disk side by the text of the buffer SOURCE."
  (with-current-buffer (qwen-companion-proposal-disk-buffer proposal)
    (let ((same (qwen-companion-disk-same-text-p source)))
      (unless same
        (let ((inhibit-read-only t))
          (replace-buffer-contents source 0.1))
        (qwen-companion-untrusted-show-hidden)
        (set-buffer-modified-p nil))
      (pcase-let ((`(,kind ,side ,note . ,_)
                   (qwen-companion-review--change-on-disk proposal)))
        (when (or (eq kind 'same) (and same (eq kind 'changed)))
          ;; Only its time has changed, or it is as proposed: nothing would be
          ;; overwritten.
          (setf (qwen-companion-proposal-checked proposal)
                (qwen-companion-proposal-stamp proposal)))
        (unless (and same (eq kind 'changed))
          (qwen-companion-review--set-header side)
          (setf (qwen-companion-proposal-note proposal) note)
          (force-mode-line-update t)
          (qwen-companion-review-refresh (qwen-companion-proposal-style proposal)
                                         proposal))))))

(defun qwen-companion-review--note-writes (proposal)
  "Warn if the file of PROPOSAL was written before the review is shown."
  (let ((stamp (qwen-companion-disk-stamp (qwen-companion-proposal-path proposal))))
    (unless (equal stamp (qwen-companion-proposal-stamp proposal))
      (pcase-let ((`(,kind ,side ,note . ,_)
                   (qwen-companion-review--change-on-disk proposal)))
        (setf (qwen-companion-proposal-stamp proposal) stamp
              (qwen-companion-proposal-note proposal)
              (if (eq kind 'changed) "written since" note))
        (unless (eq kind 'changed)
          (with-current-buffer (qwen-companion-proposal-disk-buffer proposal)
            (qwen-companion-review--set-header side)))))
    (setf (qwen-companion-proposal-checked proposal) stamp)
    (qwen-companion-review--merge-file proposal)))

(defun qwen-companion-review--check-disk (proposal)
  "Signal a `user-error' if the file of PROPOSAL was written unnoticed.
Signal once for a change that makes writing the file risky: accepting
again accepts.  Merge a written text first, and require conflicts to be
resolved, so that no acceptance overwrites it."
  (qwen-companion-review-file-written (qwen-companion-proposal-path proposal))
  (qwen-companion-review--examine proposal)
  (let ((file (qwen-companion-proposal-display-path proposal))
        (stamp (qwen-companion-proposal-stamp proposal))
        (checked (qwen-companion-proposal-checked proposal))
        (warning (qwen-companion-proposal-warning proposal)))
    (cond
     ((and warning (eq checked 'unseen))
      (setf (qwen-companion-proposal-checked proposal) stamp)
      (user-error "%s has changed (%s); check it, then accept again" file warning))
     ((qwen-companion-review--merge-file proposal t)
      (user-error "%s changed on disk after it was proposed; merging it, then accept again"
                  file))
     ((with-current-buffer (qwen-companion-proposal-buffer proposal)
        (qwen-companion-conflicts-p))
      (user-error "The proposal for %s has conflicts with the file on disk; resolve them first" file))
     ((not (equal stamp (qwen-companion-proposal-checked proposal)))
      (setf (qwen-companion-proposal-checked proposal) stamp)
      (user-error "%s %s" file
                  (or (nth 3 (qwen-companion-review--change-on-disk proposal))
                      "changed on disk; check the review, then accept again"))))))

(defun qwen-companion-review-file (proposal)
  "Return the file name of PROPOSAL relative to its project, with its host.
If it is a link to a risky file, or out of the project, return the target."
  (let* ((path (qwen-companion-places-name (qwen-companion-proposal-path proposal)))
         (place (qwen-companion-places-of path))
         (real (qwen-companion-proposal-real proposal))
         (root (if place
                   (qwen-companion-places-root path)
                 (qwen-companion-roots-of default-directory))))
    (cond
     (real (qwen-companion-untrusted-path real))
     ((not (qwen-companion-proposal-file-p proposal))
      (qwen-companion-proposal-display-path proposal))
     ((and root place)
      (concat (qwen-companion-places-label place) ":"
              (qwen-companion-untrusted-text (string-remove-prefix (concat root "/") path))))
     (root (qwen-companion-untrusted-path (file-relative-name path root)))
     (t (qwen-companion-proposal-display-path proposal)))))

(defun qwen-companion-review-warning-hint (proposal)
  "Return the warning about the file of PROPOSAL, to append to a message."
  (if-let* ((warning (qwen-companion-proposal-warning proposal)))
      (concat "  " (propertize warning 'face 'warning))
    ""))

(put 'qwen-companion-review-buffer-mode 'qwen-companion-header-keys
     (list (cons '(qwen-companion-diff-edit "edit" nil keep)
                 (lambda () buffer-read-only))))

(defvar qwen-companion-review-keys-mode)
(defvar qwen-companion-review-keys-mode-map)

(defvar-local qwen-companion-review--side nil
  "A description of the text in the current buffer, a side of a review.")

(defvar-local qwen-companion-review--copied-from nil
  "Source of the unsaved text copied to the current buffer: (BUFFER . TICK).
TICK is what `buffer-chars-modified-tick' was in BUFFER.")

(defun qwen-companion-review--user-buffer ()
  "Return the user's current buffer, even while another window is redisplayed."
  (let ((window (old-selected-window)))
    (window-buffer (and (window-live-p window)
                        (or (and (window-minibuffer-p window) (minibuffer-selected-window))
                            window)))))

(defun qwen-companion-review-key-hint ()
  "Return the key to this review while the user is elsewhere, else nil."
  (let ((buffer (qwen-companion-review--user-buffer)))
    (unless (eq qwen-companion-proposal-current
                (buffer-local-value 'qwen-companion-proposal-current buffer))
      (let ((key (with-current-buffer buffer
                   (and qwen-companion-review-keys-mode
                        (where-is-internal #'qwen-companion-review
                                           (list qwen-companion-review-keys-mode-map) t)))))
        (propertize (if key (key-description key) "M-x qwen-companion-review")
                    'face 'help-key-binding)))))

(defun qwen-companion-review-mode-keys (&optional mode)
  "Return the keys of MODE as `qwen-companion-header-mode-keys' where they work.
While the user is outside this review, return the key to it instead."
  (if-let* ((key-hint (qwen-companion-review-key-hint)))
      `((-1 . ,(concat key-hint " goes here")))
    (qwen-companion-header-mode-keys mode)))

(defun qwen-companion-review--selection-changed (_frame)
  "Update the keys shown in reviews after another window was selected."
  (force-mode-line-update t)
  ;; In this hook, `old-selected-window' is still the previous window.
  (run-at-time 0 nil #'qwen-companion-review--update-selection))

(defun qwen-companion-review--update-selection ()
  "Update all reviews for the selected window."
  (dolist (proposal (qwen-companion-proposals))
    (qwen-companion-review-selection-changed
     (qwen-companion-proposal-style proposal) proposal)))

(defun qwen-companion-review--set-header (side)
  "Set the header line of the current buffer, which is SIDE of a review."
  (setq qwen-companion-review--side side
        header-line-format '((:eval (qwen-companion-review--header))))
  (force-mode-line-update))

(defun qwen-companion-review--header ()
  "Return the header line of a side: file, side, warnings, the key to edit."
  (let ((proposal qwen-companion-proposal-current))
    (qwen-companion-header-line
     (format "%s: %s%s" (qwen-companion-review-file proposal)
             (qwen-companion-untrusted-text qwen-companion-review--side)
             (pcase qwen-companion-review--copied-from
               ((and `(,buffer . ,tick)
                     (guard (and (buffer-live-p buffer)
                                 (/= tick (buffer-chars-modified-tick buffer)))))
                ", which has changed since")
               (_ "")))
     `(,@(and (eq (current-buffer) (qwen-companion-proposal-buffer proposal))
              (qwen-companion-review-origin-parts proposal))
       ,@(qwen-companion-review-warning-parts proposal)
       ;; The control panel shows the other keys.
       ,@(and (eq (current-buffer) (qwen-companion-proposal-buffer proposal))
              (qwen-companion-review-mode-keys 'qwen-companion-review-buffer-mode))))))

;;; The user's unsaved text

(defconst qwen-companion-review--unsaved-delay 0.1
  "Idle seconds before the check for unsaved text.")

(defvar qwen-companion-review--unsaved-timer nil
  "Timer that checks for unsaved text, or nil while no proposal is open.")

(defconst qwen-companion-review--saving-hooks
  '(after-save-hook after-revert-hook)
  "Hooks that run when a buffer is no longer unsaved, even without input.")

(defun qwen-companion-review--watch ()
  "Check for unsaved text now, and regularly while proposals are open.
Update the keys in header lines meanwhile."
  (cond
   ((null (qwen-companion-proposals))
    (qwen-companion-timers-cancel qwen-companion-review--unsaved-timer)
    (remove-hook 'window-selection-change-functions #'qwen-companion-review--selection-changed)
    (dolist (hook qwen-companion-review--saving-hooks)
      (remove-hook hook #'qwen-companion-review--check-unsaved-soon)))
   ((null qwen-companion-review--unsaved-timer)
    (setq qwen-companion-review--unsaved-timer
          (run-with-idle-timer qwen-companion-review--unsaved-delay t
                               #'qwen-companion-review-check-unsaved))
    (add-hook 'window-selection-change-functions #'qwen-companion-review--selection-changed)
    (dolist (hook qwen-companion-review--saving-hooks)
      (add-hook hook #'qwen-companion-review--check-unsaved-soon))))
  (qwen-companion-review-check-unsaved))

(defun qwen-companion-review--check-unsaved-soon ()
  "Check for unsaved text after the current command or event."
  (run-at-time 0 nil #'qwen-companion-review-check-unsaved))

(defun qwen-companion-review-check-unsaved ()
  "Update in the reviews whether the user has unsaved text of their files.
Text that is no longer unsaved may now be on disk."
  (qwen-companion-buffers-locally
    (let (changed)
      (dolist (proposal (qwen-companion-proposals))
        (let* ((path (qwen-companion-proposal-path proposal))
               (unsaved (qwen-companion-disk-visiting path #'buffer-modified-p)))
          (unless (eq unsaved (qwen-companion-proposal-unsaved proposal))
            (setf (qwen-companion-proposal-unsaved proposal) unsaved)
            (qwen-companion-review-unsaved-changed
             (qwen-companion-proposal-style proposal) proposal)
            (unless unsaved
              (qwen-companion-review-file-written path))
            (setq changed t))))
      (when changed
        (force-mode-line-update t)
        (run-hooks 'qwen-companion-proposal-changed-hook)))))

(defun qwen-companion-review--make-unsaved-copy (proposal)
  "Make a side of PROPOSAL's review from the user's unsaved text."
  (let ((unsaved (qwen-companion-proposal-unsaved proposal))
        (yours (qwen-companion-proposal-make-buffer proposal "yours")))
    (with-current-buffer yours
      (insert (qwen-companion-disk-text unsaved "\n"))
      (goto-char (point-min))
      (qwen-companion-review--set-mode (qwen-companion-proposal-path proposal))
      (set-buffer-modified-p nil)
      (setq buffer-read-only t
            qwen-companion-review--copied-from
            (cons unsaved (buffer-chars-modified-tick unsaved)))
      (qwen-companion-review--set-header
       (format "your unsaved text in %s" (buffer-name unsaved))))
    (setf (qwen-companion-proposal-unsaved-copy proposal) yours)))

(defun qwen-companion-review--remove-unsaved-copy (proposal)
  "Kill the copy of unsaved text of PROPOSAL, if there is one."
  (when-let* ((yours (qwen-companion-proposal-unsaved-copy proposal)))
    (setf (qwen-companion-proposal-unsaved-copy proposal) nil)
    (with-current-buffer yours
      (qwen-companion-review-buffer-mode -1))
    (qwen-companion-review--update-sides proposal)
    (kill-buffer yours)))

(defun qwen-companion-review--put-aside (proposal)
  "Remove the review of PROPOSAL from the screen; the proposal stays open."
  (setf (qwen-companion-proposal-state proposal) 'pending)
  (qwen-companion-review-hide (qwen-companion-proposal-style proposal) proposal))

(defun qwen-companion-review--update-sides (proposal)
  "Show PROPOSAL with or without the copy of unsaved text, if it is visible.
If the user has changed its windows, reopen it."
  (when (eq (qwen-companion-proposal-state proposal) 'shown)
    (if (qwen-companion-review-visible-p
         (qwen-companion-proposal-style proposal) proposal)
        (qwen-companion-review-update-sides
         (qwen-companion-proposal-style proposal) proposal)
      (qwen-companion-review--put-aside proposal))))

;;; The end of a review

(defun qwen-companion-review--ended (proposal before by-cli)
  "Clean up the review of PROPOSAL, which has ended.
BEFORE is its state before that.  BY-CLI non-nil means that the CLI ended
it, perhaps just before the user would have answered."
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
    (qwen-companion-review--show-disk-instead proposal)
    (qwen-companion-review--remove-unsaved-copy proposal)
    (when (buffer-live-p (qwen-companion-proposal-buffer proposal))
      (with-current-buffer (qwen-companion-proposal-buffer proposal)
        (qwen-companion-review-buffer-mode -1)))
    (force-mode-line-update t)
    (qwen-companion-review-schedule)
    (when selected
      (qwen-companion-review--catch-keys proposal))))

(add-hook 'qwen-companion-proposal-ended-functions #'qwen-companion-review--ended)

(defconst qwen-companion-review--late-key-seconds 1.5
  "Seconds in which a key is caught that would answer a review just ended.")

(defun qwen-companion-review--catch-keys (proposal)
  "Catch a late key meant to answer the review of PROPOSAL.
The review was selected and the CLI has ended it.  Catch one key at most,
and only for a moment."
  (let ((map (make-sparse-keymap))
        (late (lambda ()
                (interactive)
                (message "qwen-companion: the review of %s ended before your answer"
                         (qwen-companion-proposal-display-path proposal)))))
    (dolist (command '(qwen-companion-diff-accept qwen-companion-diff-accept-next
                       qwen-companion-diff-reject))
      (dolist (key (where-is-internal command (list qwen-companion-review-buffer-mode-map)))
        (define-key map key late)))
    (run-at-time qwen-companion-review--late-key-seconds nil (set-transient-map map))))

;;; Showing without disturbing

(defvar qwen-companion-review--timers nil
  "Timers that show a proposal when that does not disturb the user.")

(defvar qwen-companion-review--awaiting-next nil
  "Accepted proposal whose windows are reserved for its CLI's next one, or nil.")

(defvar qwen-companion-review--styles nil
  "Alist (SESSION . STYLE) of front ends chosen for the rest of a turn.")

(defun qwen-companion-review--announce (proposal)
  "Announce PROPOSAL and schedule its review.
Do not announce one that the user has requested."
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (qwen-companion-review-buffer-mode 1))
  (force-mode-line-update t)
  (unless (qwen-companion-proposal-requested-p proposal)
    (message "qwen-companion: %s %s%s%s"
             (qwen-companion-untrusted-text
              (qwen-companion-proposal-client proposal))
             (qwen-companion-proposal-summary proposal)
             (qwen-companion-review-warning-hint proposal)
             (cond
              ((qwen-companion-review--awaited-next-p proposal) "")
              ((and (qwen-companion-review--ediff-visible-p) (not (qwen-companion-review-shown)))
               "; it will open after the Ediff session")
              ((and (memq qwen-companion-diff-arrival '(idle now))
                    (not (qwen-companion-review--room-p proposal)))
               "; no room beside this window, M-x qwen-companion-review shows it")
              (t ""))))
  (qwen-companion-review-schedule))

(add-hook 'qwen-companion-proposal-begun-functions #'qwen-companion-review--announce)

(defun qwen-companion-review-schedule ()
  "Schedule the review of the next unseen proposal.
Call this after each change of the open proposals or their states."
  (mapc #'cancel-timer qwen-companion-review--timers)
  (setq qwen-companion-review--timers nil)
  (when (and (qwen-companion-review--unseen)
             (or (memq qwen-companion-diff-arrival '(idle now))
                 qwen-companion-review--awaiting-next))
    (setq qwen-companion-review--timers
          ;; The second timer notices when a busy state ends without input.
          (list (run-with-idle-timer qwen-companion-review--idle-delay t
                                     #'qwen-companion-review--show-next)
                (run-at-time (if (eq qwen-companion-diff-arrival 'now)
                                 0
                               qwen-companion-review--idle-delay)
                             qwen-companion-review--idle-delay
                             #'qwen-companion-review--show-next))))
  (qwen-companion-review--watch)
  (run-hooks 'qwen-companion-proposal-changed-hook))

(defun qwen-companion-review--unseen ()
  "Return the open proposals that have not been shown yet, oldest first."
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
  "Return the terminal buffers in which the CLI of PROPOSAL may run.
That is its own terminal if known, else each terminal that was started in
a directory above the file."
  (if-let* ((buffer (qwen-companion-review--own-terminal proposal)))
      (list buffer)
    (cl-remove-if-not
     (lambda (buffer)
       (qwen-companion-untrusted-in-directory-p
        (qwen-companion-proposal-path proposal)
        (buffer-local-value 'default-directory buffer)))
     (qwen-companion-terminal-buffers))))

(defun qwen-companion-review--own-terminal (proposal)
  "Return the terminal buffer of PROPOSAL's CLI, or its chat; nil for neither."
  (or (qwen-companion-proposal-chat proposal)
      (qwen-companion-terminal-session-buffer
       (qwen-companion-backend-session
        (qwen-companion-proposal-session proposal)))))

(defun qwen-companion-review-visible-window (buffer)
  "Return a visible window of BUFFER on any terminal, or nil.
`get-buffer-window' with the argument `visible' considers the frames of
the selected terminal only."
  (cl-find-if (lambda (window)
                (let ((frame (window-frame window)))
                  (and (qwen-companion-context-frame-p frame)
                       (eq t (frame-visible-p frame))
                       ;; A text terminal shows one of its frames.
                       (memq (tty-top-frame frame) (list nil frame)))))
              (get-buffer-window-list buffer 'nomini t)))

(defun qwen-companion-review-arrival-frame (proposal)
  "Return the frame in which PROPOSAL may open by itself, or nil to wait.
That is the frame of its terminal, else the selected one.  Return nil if
the terminal is in an unselected tab."
  (let ((terminals (qwen-companion-review-terminals proposal)))
    (if-let* ((window (cl-some #'qwen-companion-review-visible-window terminals)))
        (window-frame window)
      (unless (cl-some (lambda (buffer) (tab-bar-get-buffer-tab buffer t t))
                       terminals)
        (selected-frame)))))

(defvar ediff-session-registry)

(defun qwen-companion-review--busy-p ()
  "Return non-nil when changing windows now would disturb the user."
  (or (active-minibuffer-window)
      (> (recursion-depth) 0)
      ;; A command waits for a key or a process, or a key sequence or prefix
      ;; argument is incomplete.
      this-command
      prefix-arg
      (not (equal [] (this-single-command-keys)))
      (bound-and-true-p isearch-mode)
      (bound-and-true-p transient--prefix)
      executing-kbd-macro
      defining-kbd-macro
      ;; A drag.  In Eat it is always t if the program uses the mouse.
      (and track-mouse
           (not (and (eq t track-mouse) (local-variable-p 'track-mouse))))
      (not (qwen-companion-context-frame-p))
      (qwen-companion-review-shown)
      (qwen-companion-review--ediff-visible-p)))

(defun qwen-companion-review--ediff-visible-p ()
  "Return non-nil when an Ediff session is on the screen."
  (cl-some (lambda (buffer)
             (and (buffer-live-p buffer)
                  (get-buffer-window buffer 'visible)))
           (bound-and-true-p ediff-session-registry)))

(defun qwen-companion-review--show-miswritten (buffer)
  "Show how the file differs from the text in BUFFER, accepted for it.
Do not select the window, and do nothing if the user would be disturbed."
  (qwen-companion-rescue-compare
   buffer
   (lambda (difference)
     (unless (qwen-companion-review--busy-p)
       (display-buffer difference '(nil (inhibit-same-window . t)))))))

(add-hook 'qwen-companion-proposal-miswritten-functions
          #'qwen-companion-review--show-miswritten)

(defun qwen-companion-review--idle-p ()
  "Return non-nil when Emacs is idle long enough to show a proposal."
  (or (not (or (eq qwen-companion-diff-arrival 'idle)
               ;; Also if the option is `command': the user may be about to call it.
               (and qwen-companion-review--awaiting-next
                    (eq qwen-companion-diff-arrival 'command))))
      (when-let* ((idle (current-idle-time)))
        ;; Negative when the clock was set back since.
        (>= (abs (float-time idle)) qwen-companion-review--idle-delay))))

(defun qwen-companion-review--room-p (proposal)
  "Return non-nil when PROPOSAL can open without replacing a window.
Replacing the selected one would send the next keys to another buffer."
  (or qwen-companion-diff-select
      (qwen-companion-review-fits-p 'unified proposal nil)))

(defun qwen-companion-review--show-next ()
  "Show the oldest unseen proposal, unless that would disturb the user.
While one is awaited in the selected window, show only that one, there."
  (when (and (qwen-companion-review--idle-p)
             (not (qwen-companion-review--busy-p)))
    (qwen-companion-buffers-locally
      (cond
       ((null qwen-companion-review--awaiting-next)
        (when-let* ((proposal (cl-find-if (lambda (proposal)
                                            (and (qwen-companion-review-arrival-frame proposal)
                                                 (qwen-companion-review--room-p proposal)))
                                          (qwen-companion-review--unseen))))
          (qwen-companion-review--display proposal qwen-companion-diff-select)))
       ((eq qwen-companion-review--awaiting-next
            (buffer-local-value 'qwen-companion-proposal-current (window-buffer)))
        (when-let* ((next (cl-find-if #'qwen-companion-review--awaited-next-p
                                      (qwen-companion-review--unseen))))
          (qwen-companion-review--show-after
           qwen-companion-review--awaiting-next next
           (qwen-companion-review-slot 'waiting qwen-companion-review--awaiting-next))))
       ;; The user has left the window: treat it like any other.
       (t (qwen-companion-review-stop-waiting))))))

(defun qwen-companion-review--display (proposal select)
  "Show PROPOSAL; SELECT is as in `qwen-companion-review-show'."
  (qwen-companion-review-stop-waiting)
  (setf (qwen-companion-proposal-seen proposal) t)
  (unless (or (qwen-companion-proposal-style proposal)
              (not (qwen-companion-proposal-file-p proposal)))
    (setf (qwen-companion-proposal-style proposal)
          (alist-get (qwen-companion-proposal-session proposal)
                     qwen-companion-review--styles nil nil #'equal)))
  (unless (qwen-companion-proposal-style proposal)
    ;; The CLI learnt of reviews before the option became nil.
    (let ((style (or (qwen-companion-review-style (qwen-companion-proposal-kind proposal) proposal)
                     qwen-companion-diff-style
                     'ediff)))
      (setf (qwen-companion-proposal-style proposal)
            (if (qwen-companion-review-fits-p style proposal select)
                style
              'unified))))
  (condition-case err
      (qwen-companion-buffers-without-collecting
        (unless (qwen-companion-proposal-disk-buffer proposal)
          (qwen-companion-review--prepare proposal))
        (setf (qwen-companion-proposal-state proposal) 'shown)
        (qwen-companion-review-show (qwen-companion-proposal-style proposal) proposal select)
        ;; Before garbage collection.
        (redisplay))
    (error (qwen-companion-review-fall-back proposal err select)))
  ;; Timers and processes run in the front end, and one may end the proposal.
  (unless (qwen-companion-proposal-open-p proposal)
    (qwen-companion-review-hide (qwen-companion-proposal-style proposal) proposal))
  (qwen-companion-review-schedule))

(defun qwen-companion-review-fall-back (proposal err select)
  "Show PROPOSAL hunk by hunk because its front end signaled ERR.
SELECT non-nil means to select the review.  If the front end that failed
is the one for hunks, leave the proposal pending."
  (when (qwen-companion-proposal-open-p proposal)
    (qwen-companion-review--put-aside proposal)
    (if (eq 'unified (qwen-companion-proposal-style proposal))
        (message "qwen-companion: cannot show the review of %s (%s); the proposal is in %s"
                 (qwen-companion-proposal-display-path proposal)
                 (error-message-string err)
                 (buffer-name (qwen-companion-proposal-buffer proposal)))
      (setf (qwen-companion-proposal-style proposal) 'unified)
      (qwen-companion-review--display proposal select)
      (message "qwen-companion: Ediff cannot show %s (%s); showing it hunk by hunk"
               (qwen-companion-proposal-display-path proposal)
               (error-message-string err)))))

(defun qwen-companion-review-frame-deleted (frame)
  "Schedule the review again that was shown in FRAME, a deleted frame."
  (dolist (proposal (copy-sequence (qwen-companion-proposals)))
    (when (and (eq (qwen-companion-proposal-state proposal) 'shown)
               (eq frame (qwen-companion-review-frame
                          (qwen-companion-proposal-style proposal) proposal)))
      (setf (qwen-companion-proposal-seen proposal) nil)
      (qwen-companion-review--put-aside proposal)
      (qwen-companion-review-schedule))))

(defun qwen-companion-diff-bury ()
  "Put the review aside; the proposal stays open.
\\[qwen-companion-diff-open] reopens it."
  (interactive)
  (let ((proposal (qwen-companion-review--find nil "put aside")))
    (when (eq (qwen-companion-proposal-state proposal) 'shown)
      (qwen-companion-review--put-aside proposal))
    (qwen-companion-review-schedule)
    (message "qwen-companion: %s put aside (M-x qwen-companion-review reopens it)"
             (qwen-companion-proposal-display-path proposal))))

;;; Commands

(defun qwen-companion-review--find (file verb)
  "Return the open proposal on which a command acts.
FILE is a file name, a proposal, or nil for the proposal of the current
buffer or terminal or at point in the list, else the only one.  If there
is none or several, signal a `user-error' with VERB, a string that names
the command."
  (let ((candidates
         (cond
          ((qwen-companion-proposal-p file) (list file))
          (file
           (let ((path (expand-file-name file)))
             (cl-remove path (qwen-companion-proposals) :test-not #'equal
                        :key (lambda (proposal)
                               (qwen-companion-places-name
                                (qwen-companion-proposal-path proposal))))))
          (t (qwen-companion-review--candidates)))))
    (cond
     ((null candidates)
      (user-error (if file "No proposal for %s" "Nothing to %s: no open proposals")
                  (if file (abbreviate-file-name file) verb)))
     ((cdr candidates)
      (user-error "Go to the review to %s: %d proposals are open, for %s" verb
                  (length candidates)
                  (mapconcat #'qwen-companion-proposal-display-path candidates ", ")))
     ((not (qwen-companion-proposal-open-p (car candidates)))
      (user-error "The proposal for %s is already %s"
                  (qwen-companion-proposal-display-path (car candidates))
                  (qwen-companion-proposal-state (car candidates))))
     (t (car candidates)))))

(defun qwen-companion-review-of-terminal (buffer)
  "Return the open proposals of the CLI in the terminal BUFFER, oldest first."
  (cl-remove-if-not
   (lambda (proposal)
     (eq buffer (qwen-companion-review--own-terminal proposal)))
   (qwen-companion-proposals)))

(defun qwen-companion-review--candidates ()
  "Return the proposals on which a command in the current buffer may act."
  (cond (qwen-companion-proposal-current
         (list qwen-companion-proposal-current))
        ((derived-mode-p 'qwen-companion-diffs-mode)
         (list (qwen-companion-list-at-point)))
        (t
         (or (qwen-companion-review-of-terminal (current-buffer))
             (qwen-companion-proposals)))))

(defun qwen-companion-review--read (verb)
  "Ask which proposal to VERB, a string, if there are several candidates."
  (let ((candidates (qwen-companion-review--candidates)))
    (when (cdr candidates)
      (qwen-companion-completion-read
       (format "%s which proposal: " verb) (qwen-companion-review--choices candidates)
       'qwen-companion-proposal #'qwen-companion-review--annotation))))

(defun qwen-companion-review--annotation (proposal)
  "Return the age and state of PROPOSAL, for completion."
  (format "%s, %s"
          (format-time-string "%R" (qwen-companion-proposal-arrived proposal))
          (if (eq 'shown (qwen-companion-proposal-state proposal))
              "being reviewed"
            "waiting")))

(defun qwen-companion-review-name (proposal)
  "Return the name of PROPOSAL among all open ones, in completion."
  (car (rassq proposal (qwen-companion-review--choices (qwen-companion-proposals)))))

(defun qwen-companion-review--choices (proposals)
  "Return an alist of PROPOSALS by distinct labels."
  (qwen-companion-completion-distinct
   (mapcar (lambda (proposal)
             (cons (format "%s (%s)"
                           (qwen-companion-proposal-display-path proposal)
                           (qwen-companion-untrusted-text
                            (qwen-companion-proposal-client proposal)))
                   proposal))
           proposals)))

(defun qwen-companion-review-check-text (proposal)
  "Signal a `user-error' if the text of PROPOSAL cannot be sent to the CLI."
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (when (and (zerop (buffer-size))
               (not (qwen-companion-proposal-answer proposal))
               (not (qwen-companion-proposal-held proposal))
               (not (qwen-companion-proposal-empty proposal)))
      (user-error "Cannot accept an empty text: the CLI would write its own.  M-x qwen-companion-diff-empty rejects the proposal and empties the file's buffer"))
    (save-excursion
      (save-restriction
        (widen)
        (goto-char (point-min))
        ;; Emacs would encode half a surrogate pair, but Python cannot.
        (skip-chars-forward "\0-\uD7FF\uE000-\U0010FFFF")
        (unless (eobp)
          (user-error "Character %d of the text cannot be encoded as UTF-8; remove it first"
                      (point)))))))

(defun qwen-companion-review-check-answerable (proposal)
  "Signal a `user-error' when PROPOSAL can only be answered in the terminal."
  (when (eq 'left (qwen-companion-proposal-released proposal))
    (user-error "Answer in the terminal: %s" (qwen-companion-proposal-note proposal))))

(defvar qwen-companion-review-accept-functions nil
  "Functions to call with a proposal before it is accepted.
A buffer that shows a proposal adds its own, which may ask the user or
signal a `user-error'.")

;;;###autoload
(defun qwen-companion-diff-accept (&optional file)
  "Accept a proposal with your edits; the CLI writes it.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one."
  (interactive (list (qwen-companion-review--read "Accept")))
  (let ((proposal (qwen-companion-review--find file "accept")))
    (run-hook-with-args 'qwen-companion-review-accept-functions proposal)
    (qwen-companion-review-check-answerable proposal)
    (qwen-companion-buffers-without-collecting
      (qwen-companion-proposal-decide
       proposal 'accepted
       (qwen-companion-review-answer (qwen-companion-proposal-kind proposal) proposal)))
    (message "qwen-companion: accepted %s%s"
             (qwen-companion-proposal-display-path proposal)
             (if-let* ((others (qwen-companion-proposals-of-file
                                (qwen-companion-proposal-path proposal))))
                 (format "; a proposal of %s for it is still open"
                         (mapconcat #'qwen-companion-proposal-client others ", "))
               ""))))

(defun qwen-companion-review--read-reason (proposal)
  "Read the reason to reject PROPOSAL; return nil for an empty one."
  (unless (qwen-companion-proposal-held proposal)
    (qwen-companion-header-error
     "This CLI accepts no reason with a rejection; \\[qwen-companion-diff-comment] comments on a line"))
  (let ((reason (string-trim (read-string "Reason, for the model: "))))
    (and (not (string-empty-p reason)) reason)))

;;;###autoload
(defun qwen-companion-diff-reject (&optional file reason)
  "Reject a proposal; nothing is written.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one.  With a prefix argument, read a REASON,
for the model; a CLI in its mode \"default\" accepts none."
  (interactive
   (let ((file (qwen-companion-review--read "Reject")))
     (list file
           (and current-prefix-arg
                (qwen-companion-review--read-reason
                 (qwen-companion-review--find file "reject"))))))
  (let ((proposal (qwen-companion-review--find file "reject")))
    (qwen-companion-review-check-answerable proposal)
    (when reason
      (setf (qwen-companion-proposal-reason proposal) reason))
    (qwen-companion-proposal-decide proposal 'rejected)
    (message "qwen-companion: rejected %s" (qwen-companion-proposal-display-path proposal))))

;;;###autoload
(defun qwen-companion-diff-empty (&optional file)
  "Reject a proposal and empty the buffer that visits its file.
Use it to make a file empty, which cannot be sent to a CLI.
One `undo' reverts it; the buffer is not saved.

Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one."
  (interactive (list (qwen-companion-review--read "Empty the file of")))
  (let* ((proposal (qwen-companion-review--find file "reject"))
         (buffer (qwen-companion-disk-visit
                  (qwen-companion-proposal-path proposal))))
    (qwen-companion-proposal-decide proposal 'rejected)
    (with-current-buffer buffer
      (undo-boundary)
      (widen)
      (erase-buffer)
      ;; Let the user save an empty file that does not exist yet.
      (set-buffer-modified-p t)
      (undo-boundary))
    (pop-to-buffer buffer)
    (message "qwen-companion: rejected; this buffer is now empty, not saved yet")))

;;;###autoload
(defun qwen-companion-diff-open (&optional file)
  "Show the review of an open proposal and select it.
Act on the only proposal; FILE names the file of another one."
  (interactive (list (qwen-companion-review--read "Review")))
  (qwen-companion-review-replace (qwen-companion-review--find file "review") t))

(defun qwen-companion-review-replace (proposal select)
  "Show the review of PROPOSAL in place of the one that is on the screen.
SELECT non-nil means to select it."
  (let ((shown (qwen-companion-review-shown)))
    (when (and shown
               (or (not (eq shown proposal))
                   ;; It is on another display than the user's.
                   (and select
                        (not (eq (frame-terminal)
                                 (frame-terminal
                                  (qwen-companion-review-frame
                                   (qwen-companion-proposal-style proposal) proposal)))))))
      (qwen-companion-review--put-aside shown))
    (qwen-companion-review--display proposal select)))

;;;###autoload
(defun qwen-companion-diff-show-unsaved (&optional file)
  "Show your unsaved text as a third side of a review, or hide it again.
It is a copy of the text in the buffer that visits the file, as it is
now; neither that buffer nor the proposal changes.

Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one."
  (interactive (list (qwen-companion-review--read "Show your text beside")))
  (let ((proposal (qwen-companion-review--find file "compare with your text")))
    (qwen-companion-review-check-unsaved)
    (cond
     ((qwen-companion-proposal-unsaved-copy proposal)
      (qwen-companion-review--remove-unsaved-copy proposal))
     ((null (qwen-companion-proposal-unsaved proposal))
      (user-error "No unsaved text of %s"
                  (qwen-companion-proposal-display-path proposal)))
     (t
      (qwen-companion-review--make-unsaved-copy proposal)
      (qwen-companion-review--update-sides proposal)
      (unless (eq proposal (qwen-companion-review-shown))
        (qwen-companion-diff-open proposal))))))

(defun qwen-companion-diff-show-warnings ()
  "Show the warnings of this review in full.
A narrow header line truncates them."
  (interactive)
  (let ((warnings (cl-loop for (_ . text) in (qwen-companion-review-warning-parts
                                              (qwen-companion-review--find nil "show the warnings of"))
                           when text
                           collect (substring-no-properties (if (consp text) (car text) text)))))
    (unless warnings
      (user-error "No warnings about this proposal"))
    (message "%s" (string-join warnings "\n"))))

;;;###autoload
(defun qwen-companion-diff-switch (&optional file)
  "Show the review of a proposal in the other front end and select it.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one.  See `qwen-companion-diff-style'."
  (interactive (list (qwen-companion-review--read "Switch the review of")))
  (let* ((proposal (qwen-companion-review--find file "switch"))
         (style (qwen-companion-proposal-style proposal)))
    (when (eq 'question (qwen-companion-proposal-kind proposal))
      (user-error "Questions have one view only"))
    (when (eq (qwen-companion-proposal-state proposal) 'shown)
      (qwen-companion-review--put-aside proposal))
    (setf (qwen-companion-proposal-style proposal)
          (cond ((not (eq (or style qwen-companion-diff-style) 'unified)) 'unified)
                ((qwen-companion-proposal-file-p proposal) 'ediff)
                (t 'plan)))
    (qwen-companion-review--fix-style proposal)
    (qwen-companion-diff-open proposal)))

(defun qwen-companion-review-grouped ()
  "Return the open proposals, grouped by session.
The sessions are in the order of their oldest proposals."
  (qwen-companion-review--group (qwen-companion-proposals)
                                #'qwen-companion-proposal-session))

(defun qwen-companion-review-by-file ()
  "Return the open proposals, grouped by file."
  (qwen-companion-review--group (qwen-companion-review-grouped)
                                #'qwen-companion-proposal-path))

(defun qwen-companion-review--group (proposals key)
  "Return PROPOSALS with equal KEY adjacent, in the order of each group's first."
  (mapcan (lambda (value)
            (seq-filter (lambda (proposal) (equal value (funcall key proposal))) proposals))
          (delete-dups (mapcar key proposals))))

(defun qwen-companion-review--after (proposal &optional back)
  "Return the open proposal after PROPOSAL, or with BACK the one before it.
The first follows the last.  If PROPOSAL is not open, return nil."
  (let* ((all (if back
                  (reverse (qwen-companion-review-grouped))
                (qwen-companion-review-grouped)))
         (here (memq proposal all)))
    (and here (or (cadr here) (car all)))))

;;;###autoload
(defun qwen-companion-review (&optional back)
  "Go to the next open proposal.
From a review, go to the next one of its CLI, then to those of other
CLIs, and from the last to the first.  From a terminal, go to the oldest
proposal of its CLI.  From another buffer, go to the proposal on the
screen, else to the oldest.  With BACK non-nil, go to the previous one."
  (interactive)
  (let ((proposal (or (qwen-companion-review--after qwen-companion-proposal-current back)
                      (car (qwen-companion-review-of-terminal (current-buffer)))
                      (qwen-companion-review-shown)
                      (car (qwen-companion-proposals))
                      (user-error "Nothing to review: no open proposals"))))
    (qwen-companion-diff-open proposal)
    ;; Without a message, Emacs would search for a shorter name of the command
    ;; after M-x; that takes a second, in which no hunk would be drawn.
    (message "%s" (qwen-companion-review-name proposal))))

;;;###autoload
(defun qwen-companion-review-previous ()
  "Go to the previous open proposal, see `qwen-companion-review'."
  (interactive)
  (qwen-companion-review t))

;;; From one proposal of a turn to the next

(defconst qwen-companion-review--wait-seconds 5
  "Seconds to wait for another proposal of a CLI whose turn has no known end.")

(defun qwen-companion-review--activity (session)
  "Return the activity of the CLI of SESSION, an id, or nil if it has disconnected."
  (when-let* ((session (qwen-companion-backend-session session)))
    (or (qwen-companion-cli-state-activity (qwen-companion-session-state session))
        'unknown)))

(defun qwen-companion-review--awaited-next-p (proposal)
  "Return non-nil when PROPOSAL is the awaited next one of its CLI."
  (and qwen-companion-review--awaiting-next
       (equal (qwen-companion-proposal-session proposal)
              (qwen-companion-proposal-session qwen-companion-review--awaiting-next))))

(defun qwen-companion-review--fix-style (proposal)
  "Show the proposals of PROPOSAL's CLI in its style until the turn has ended."
  (let ((session (qwen-companion-proposal-session proposal)))
    (when (and (memq (qwen-companion-review--activity session) '(working asking))
               (qwen-companion-proposal-file-p proposal))
      (setf (alist-get session qwen-companion-review--styles nil nil #'equal)
            (qwen-companion-proposal-style proposal)))))

(defun qwen-companion-review--show-after (proposal next place)
  "Show NEXT, selected, in PLACE, where PROPOSAL was accepted.
If both are from the same CLI, use the same style."
  (when (and (equal (qwen-companion-proposal-session proposal)
                    (qwen-companion-proposal-session next))
             (qwen-companion-proposal-file-p proposal)
             (qwen-companion-proposal-file-p next)
             (not (qwen-companion-proposal-style next)))
    (setf (qwen-companion-proposal-style next) (qwen-companion-proposal-style proposal)))
  (qwen-companion-review-replace next place))

(defun qwen-companion-review--wait-for-next (proposal place)
  "Wait in PLACE for the next proposal of the CLI of PROPOSAL, which has ended.
Keys have no effect meanwhile: in the terminal, one could answer a prompt
that the user has not seen."
  (setq qwen-companion-review--awaiting-next proposal)
  (qwen-companion-review-show 'waiting proposal place)
  (when (eq 'unknown (qwen-companion-review--activity
                      (qwen-companion-proposal-session proposal)))
    (run-at-time qwen-companion-review--wait-seconds nil
                 #'qwen-companion-review--wait-timed-out proposal)))

(defun qwen-companion-review--wait-timed-out (proposal)
  "Stop waiting for the proposal after PROPOSAL, because time is up."
  (when (eq proposal qwen-companion-review--awaiting-next)
    (qwen-companion-review-stop-waiting)))

(defun qwen-companion-review-stop-waiting ()
  "Stop waiting for the next proposal of a CLI; restore the windows."
  (interactive (qwen-companion-buffers-require-mode 'qwen-companion-waiting-mode)
               qwen-companion-waiting-mode)
  (when-let* ((proposal qwen-companion-review--awaiting-next))
    (setq qwen-companion-review--awaiting-next nil)
    (qwen-companion-review-hide 'waiting proposal)
    (qwen-companion-review-schedule)))

(defun qwen-companion-review-sessions-changed ()
  "Forget the style and end the wait of each CLI whose turn has ended."
  (let ((over-p (lambda (session)
                  (memq (qwen-companion-review--activity session)
                        '(nil idle cancelled)))))
    (setq qwen-companion-review--styles
          (cl-delete-if over-p qwen-companion-review--styles :key #'car))
    (when-let* ((proposal qwen-companion-review--awaiting-next)
                ((funcall over-p (qwen-companion-proposal-session proposal))))
      (message "qwen-companion: %s has ended its turn, no more proposals"
               (qwen-companion-untrusted-text (qwen-companion-proposal-client proposal)))
      (qwen-companion-review-stop-waiting))))

;;;###autoload
(defun qwen-companion-diff-accept-next (&optional file)
  "Accept a proposal with your edits and go to the next one.
If none is open, but the CLI is in a turn, wait for its next one in this
one's window.

Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one."
  (interactive (list (qwen-companion-review--read "Accept")))
  (let* ((proposal (qwen-companion-review--find file "accept"))
         (next (qwen-companion-review--after proposal))
         (place (qwen-companion-review-slot
                 (qwen-companion-proposal-style proposal) proposal)))
    (qwen-companion-diff-accept proposal)
    (cond
     ((not (eq next proposal))
      (qwen-companion-review--show-after proposal next place))
     ((and (not (qwen-companion-proposal-answer proposal))
           (memq (qwen-companion-review--activity
                  (qwen-companion-proposal-session proposal))
                 '(working asking unknown)))
      (qwen-companion-review--wait-for-next proposal place)))))

;;; Repeated keys

;; These keys have the same effect, or none, in the buffers they lead to.
(defvar qwen-companion-review-repeat-map
  (qwen-companion-buffers-keymap
   "]" #'qwen-companion-review
   "[" #'qwen-companion-review-previous
   "y" #'qwen-companion-diff-accept-next)
  "Keys after a command that goes from review to review, for `repeat-mode'.")

(dolist (command '(qwen-companion-review qwen-companion-review-previous
                   qwen-companion-diff-accept-next))
  (put command 'repeat-map 'qwen-companion-review-repeat-map))

;;; Keys in terminals

(defvar qwen-companion-review-command-map
  (qwen-companion-buffers-keymap
   "r" #'qwen-companion-review
   "a" #'qwen-companion-diff-accept
   "k" #'qwen-companion-diff-reject
   "i" #'qwen-companion-terminal-escape)
  "Keymap for reviews in a terminal, behind a prefix key.")

;; C-c and a punctuation character is for minor modes by convention.  The
;; CLIs use single keys only (qwen 0.24: Ctrl or Alt with a letter and the
;; arrows).  C-c alone never reaches them: it is a prefix in vterm, eat and
;; term, and C-c C-c sends it.  After C-c, vterm and eat bind control keys,
;; and term binds the keys of C-x, which do not include `,'.
(defvar qwen-companion-review-keys-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "C-c")
                `(menu-item "" ,(let ((prefix (make-sparse-keymap)))
                                  ;; For which-key.
                                  (define-key prefix ","
                                              (cons "qwen-companion"
                                                    qwen-companion-review-command-map))
                                  (dolist (key '("C-c" "C-k"))
                                    (define-key prefix (kbd key)
                                                '(menu-item "" qwen-companion-review-ask
                                                            :filter qwen-companion-review--if-pending)))
                                  prefix)
                            :filter qwen-companion-review--terminal-prefix))
    ;; As in the other terminals; term would send them.
    (define-key map (kbd "M-x")
                '(menu-item "" execute-extended-command
                            :filter qwen-companion-review--in-char-mode))
    (define-key map (kbd "C-x")
                `(menu-item "" ,(qwen-companion-buffers-keymap
                                 :parent ctl-x-map
                                 "C-x" 'term-send-raw)
                            :filter qwen-companion-review--in-char-mode))
    map)
  "Keymap of `qwen-companion-review-keys-mode'.")

(defvar term-raw-map)

(defun qwen-companion-review--in-char-mode (binding)
  "Return BINDING if term sends all keys to its program, else nil."
  (and (derived-mode-p 'term-mode) (eq (current-local-map) term-raw-map) binding))

(defun qwen-companion-review--if-pending (command)
  "Return COMMAND if the CLI in this terminal has an open review, else nil."
  (and (qwen-companion-review-of-terminal (current-buffer)) command))

(defun qwen-companion-review-ask ()
  "Ask whether to accept or reject the open proposal of this terminal's CLI.
The review shows this key while the terminal is selected.  The third
choice is the key's usual effect in the terminal."
  (interactive)
  (let* ((waiting (or (qwen-companion-review-of-terminal (current-buffer))
                      (user-error "The CLI in this buffer has no open proposal")))
         (proposal (or (car (memq (qwen-companion-review-shown) waiting))
                       (car waiting)))
         (keys (this-command-keys))
         (own (let ((qwen-companion-review-keys-mode nil))
                (key-binding keys))))
    (pcase (car (read-multiple-choice
                 (format "%s:" (qwen-companion-review-file proposal))
                 `((?a "accept")
                   (?r "reject")
                   ,@(when (commandp own)
                       `((?c ,(if (string-suffix-p "\C-c" keys)
                                  (format "send C-c to %s"
                                          (qwen-companion-review--client proposal))
                                (format "command %s" own))))))))
      (?a (qwen-companion-diff-accept proposal))
      (?r (qwen-companion-diff-reject proposal))
      (?c (let ((qwen-companion-review-keys-mode nil))
            ;; Terminals send the last key, which is now the answer.
            (execute-kbd-macro keys))))))

(define-minor-mode qwen-companion-review-keys-mode
  "Minor mode of the terminals in which a CLI was started.
\\<qwen-companion-review-keys-mode-map>\\[qwen-companion-review] goes to the review of the CLI in this terminal,
\\[qwen-companion-diff-accept] accepts its proposal, \\[qwen-companion-diff-reject] rejects it, and
\\[qwen-companion-diffs] lists all open proposals.
While the CLI has an open review, \\[qwen-companion-review-ask] asks whether to accept or reject.
\\[qwen-companion-terminal-escape] sends Esc, which interrupts the CLI; in a text terminal,
where the key Esc does not reach it, the mode line says so."
  :lighter (:eval (qwen-companion-review--escape-hint))
  :interactive nil
  :keymap qwen-companion-review-keys-mode-map)

(defun qwen-companion-review--escape-hint ()
  "Return the mode line's part about Esc, or nil if the key itself works.
Return nil also in the buffer of a terminal outside Emacs."
  (unless (or (display-graphic-p) qwen-companion-terminal-outside)
    (substitute-command-keys " Esc:\\[qwen-companion-terminal-escape]")))

(defun qwen-companion-review--terminal-prefix (keymap)
  "Return KEYMAP if its first key is already a prefix here, else nil.
The key is no prefix in a terminal that sends every key to its program,
like eat in its char mode, or term with another `term-escape-char'."
  (let ((qwen-companion-review-keys-mode nil))
    (and (keymapp (key-binding (kbd "C-c"))) keymap)))

(defun qwen-companion-review--add-keys ()
  "Enable the keys for reviews in the current buffer, a new terminal."
  (when qwen-companion-terminal-keys
    (qwen-companion-review-keys-mode 1)))

(add-hook 'qwen-companion-terminal-opened-hook #'qwen-companion-review--add-keys)

(provide 'qwen-companion-review)
;;; qwen-companion-review.el ends here
