;;; qwen-companion-review.el --- Show and answer the proposals of a CLI  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A review shows a proposal beside the text on disk, in one of the front
;; ends, as soon as that disturbs nobody; commands answer it.
;;
;; Both sides of a review are buffers of our own, so that the buffer that
;; visits the file is never locked, changed or asked about.  The text is
;; written by a model and hostile until read: it chooses no mode, sets no
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
(require 'qwen-companion-merge)
(require 'qwen-companion-messages)
(require 'qwen-companion-options)
(require 'qwen-companion-places)
(require 'qwen-companion-proposal)
(require 'qwen-companion-rescue)
(require 'qwen-companion-roots)
(require 'qwen-companion-spool)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-diff-arrival 'idle
  "When to show a proposal that has arrived.
`idle': after half a second without input, `now': as soon as nothing
would be disturbed, `command': only by \\[qwen-companion-diff-open].
It never opens during a command, in a minibuffer, a keyboard macro or
another Ediff session; it waits then.  It also waits while its terminal
is in a tab that is not selected."
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
See `qwen-companion-review-keys-mode'.  It counts when a terminal is opened."
  :group 'qwen-companion
  :type 'boolean)

(defconst qwen-companion-review--idle-delay 0.5
  "Seconds without input after which a proposal may open.")

;;; Front ends

(cl-defgeneric qwen-companion-review-show (style proposal select)
  "Show PROPOSAL with the front end STYLE, a symbol.
Its buffers exist already.  SELECT non-nil means to select the review;
else the selected window stays selected.  SELECT may be a place from
`qwen-companion-review-place'.  The STYLE `waiting' shows that the next
proposal of the CLI of PROPOSAL, which has ended, is awaited.")

(cl-defgeneric qwen-companion-review-place (style proposal)
  "Return the place of PROPOSAL on the screen, to select another one there.
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
It is on the screen.  `qwen-companion-proposal-unsaved-copy' is a new
buffer, or nil when the one that was shown is about to be killed.  STYLE
is the front end that shows it.")

(cl-defgeneric qwen-companion-review-unsaved-changed (_style _proposal)
  "Tell STYLE that the user has, or no longer has, unsaved text for PROPOSAL.
The header lines of the buffers update themselves."
  nil)

(cl-defgeneric qwen-companion-review-selection-changed (_style _proposal)
  "Update the review of PROPOSAL by STYLE after another window was selected.
The header lines of the buffers update themselves."
  nil)

(cl-defgeneric qwen-companion-review-style (_kind _proposal)
  "Return the front end for a proposal of a KIND with one of its own, else nil."
  nil)

(cl-defgeneric qwen-companion-review-answer (_kind proposal)
  "Return the text of PROPOSAL to accept, as its buffer has it.
Signal a `user-error' if it cannot be accepted.  KIND is that of PROPOSAL."
  (qwen-companion-review-check-text proposal)
  (qwen-companion-review--check-disk proposal)
  ;; Its buffer may show the line ends in another way now.
  (qwen-companion-proposal-buffer-text proposal))

(cl-defgeneric qwen-companion-review-line-ends-changed (_style _proposal)
  "Tell STYLE that the line ends or byte order mark of PROPOSAL have changed.
The header lines of the buffers update themselves; see
`qwen-companion-proposal-line-end-summary'."
  nil)

;;; Buffers

(defun qwen-companion-review--while-reading (command)
  "Return COMMAND in a side that is read-only, where no key types; else nil."
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
   ;; As in the control panel; the editing keys of a side that is being edited.
   (mapcan (lambda (key)
             (list key `(menu-item "" ,(if (equal key "e")
                                           #'qwen-companion-diff-edit
                                         #'qwen-companion-review-panel-key)
                                   :filter qwen-companion-review--while-reading)))
           '("n" "p" "a" "k" "u" "]" "[" "M-n" "M-p" "TAB" "q" "?" "e")))
  "Keymap of the buffers of a review.")

(defun qwen-companion-review-panel-key ()
  "Do what this key does in the control panel, or the hunks, of this review."
  (interactive nil qwen-companion-review-buffer-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-review-buffer-mode)
  (let* ((keys (this-command-keys-vector))
         (side (selected-window))
         (buffer (current-buffer))
         (control (or (qwen-companion-review-control qwen-companion-proposal-current)
                      (user-error "This review is put aside; M-x qwen-companion-review brings it back")))
         (window (get-buffer-window control t)))
    (if window
        (select-window window)
      (set-buffer control))
    (let ((command (key-binding (vconcat (last (append keys nil))))))
      (when (keymapp command)
        (setq command (lookup-key command (vector (read-event (concat (key-description keys) "-"))))))
      (unless (commandp command)
        (user-error "No key of this review: %s" (key-description keys)))
      (unwind-protect
          (call-interactively command)
        (when (and (window-live-p side)
                   (eq buffer (window-buffer side))
                   (eq window (selected-window)))
          (select-window side))))))

(defun qwen-companion-diff-edit ()
  "Edit the proposal of this review in its buffer.
Keys type there then; \\[read-only-mode] makes them those of the review again."
  (interactive)
  (let ((buffer (qwen-companion-proposal-buffer (qwen-companion-review--find nil "edit"))))
    (if-let* ((window (get-buffer-window buffer t)))
        (select-window window)
      (pop-to-buffer buffer))
    (setq buffer-read-only nil)
    (force-mode-line-update)
    (message "%s" (substitute-command-keys
                   "\\[qwen-companion-diff-accept] accepts with your edits; \\[read-only-mode]: the keys of the review again"))))

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
  "Put the review aside whose side is to be killed, and return nil: it stays.
Return non-nil for a buffer that nothing is lost with."
  (or (not (qwen-companion-proposal-open-p qwen-companion-proposal-current))
      (eq (current-buffer)
          (qwen-companion-proposal-unsaved-copy qwen-companion-proposal-current))
      (ignore (qwen-companion-diff-bury))))

(defun qwen-companion-review--buffer-killed ()
  "Show the review without the copy of unsaved text that is being killed.
Reject a proposal whose buffer is killed without asking its functions."
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
      (qwen-companion-proposal-keep-draft proposal))
    (qwen-companion-review-buffer-mode 1)))

(defun qwen-companion-review--insert-disk (proposal)
  "Insert the text on disk into the current buffer, as PROPOSAL is shown.
If another CLI proposed a text before, insert the one that it will leave."
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
    (when-let* ((left (qwen-companion-proposal-left-before proposal)))
      (erase-buffer)
      (insert (cdr left)))))

(defun qwen-companion-review--disk-side (proposal)
  "Return a description of the text on the disk side of PROPOSAL."
  (let ((left (qwen-companion-proposal-left-before proposal)))
    (cond (left (format "as %s leaves it" (car left)))
          ((qwen-companion-proposal-earlier proposal) "the plan before")
          ((file-exists-p (qwen-companion-proposal-path proposal)) "on disk")
          (t "not on disk yet"))))

(defun qwen-companion-review--show-without (ended)
  "In other CLIs' reviews of its file, replace the text of ENDED by that on disk.
It stays there if ENDED was accepted."
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
lacks proposals of this CLI that are accepted and not written yet, as the
CLI has not seen them either.  If another CLI proposed a text before, it
is that one: whoever accepts both gets the difference."
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
      ;; A plan is edited where it is read.
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
  "Toggle between the line ends and byte order mark on disk and the proposed.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one."
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

;;; What a review says

(defun qwen-companion-review--rival-warning (proposal)
  "Return the warning that another CLI works on the file of PROPOSAL, or nil.
It proposes a change of the file, or has changed it in a turn that goes on."
  (if-let* ((rival (car (qwen-companion-proposals-of-others proposal))))
      (format "%s proposes a change of it too" (qwen-companion-proposal-client rival))
    (when-let* ((client (run-hook-with-args-until-success
                         'qwen-companion-proposal-rival-functions proposal)))
      (format "%s is changing it too" client))))

(defun qwen-companion-review-warning-parts (proposal)
  "Return the warnings about accepting PROPOSAL.
They are parts of `qwen-companion-header-line' that are never left out,
some with the key that does something about it, and in fewer words where
there is little room."
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
         ,(cond ((qwen-companion-proposal-unsaved-copy proposal) "without your unsaved text")
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
   ;; That is in the list.
   " [0-9][0-9.]*\\'" ""
   (qwen-companion-untrusted-text (qwen-companion-proposal-client proposal))))

(defun qwen-companion-review-origin-parts (proposal)
  "Return where PROPOSAL comes from, as parts of `qwen-companion-header-line'.
These are its CLI, whether the user has edited it, its project, and which
of the CLI's open proposals it is."
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
  "Places that may differ in white space before no more are compared.")

(defconst qwen-companion-review--space-limit 200000
  "Characters above which a proposal is not checked for white space.")

(defvar-local qwen-companion-review--only-space nil
  "Whether white space alone differs in the current proposal: (TICKS . ANSWER).")

(defun qwen-companion-review--only-space-p (proposal)
  "Return non-nil when PROPOSAL differs from the disk in white space alone."
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
  "Return non-nil when the buffers OLD and NEW differ, but in white space alone."
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
             ;; Other files of the directory cost little.
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
What was written is merged into the proposed text where that is possible."
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

(defun qwen-companion-review--moved-p (proposal)
  "Return non-nil when the file of PROPOSAL has text that this lacks.
It was written since, and is not merged into the proposed text yet."
  (let ((path (qwen-companion-proposal-path proposal)))
    (and (qwen-companion-proposal-file-p proposal)
         (not (equal (qwen-companion-proposal-stamp proposal)
                     (car (qwen-companion-proposal-origin proposal))))
         (file-exists-p path)
         (not (file-directory-p path)))))

(defun qwen-companion-review--merge-file (proposal &optional mark)
  "Merge what was written to the file of PROPOSAL into the proposed text.
Return nil when there is nothing to merge; else return at once, and non-nil.
Where both changed the same lines, mark that as conflicts if MARK is
non-nil; else only note it in the review."
  (when (qwen-companion-review--moved-p proposal)
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
              proposal "changed since in the same lines")))))
        t)
       (t
        (qwen-companion-review--refuse-merge proposal mark)
        t)))))

(defun qwen-companion-review--refuse-merge (proposal tell)
  "Note that what was written to the file of PROPOSAL cannot be merged.
TELL non-nil means to say it as well."
  (qwen-companion-review--set-note proposal "changed since, cannot be merged")
  (when tell
    (message "qwen-companion: what was written to %s cannot be merged with the proposal; reject it, so that %s reads the file again"
             (qwen-companion-proposal-display-path proposal)
             (qwen-companion-untrusted-text (qwen-companion-proposal-client proposal)))))

(defun qwen-companion-review--adopt-file (proposal file)
  "Make FILE the origin of the proposed text of PROPOSAL.
FILE is as in `qwen-companion-proposal-read-file'."
  (setf (qwen-companion-proposal-origin proposal) file)
  (unless (eq 'unseen (qwen-companion-proposal-checked proposal))
    (setf (qwen-companion-proposal-checked proposal) (car file))))

(defun qwen-companion-review--adopt-merge (proposal file merged theirs)
  "Change the proposed text of PROPOSAL by the edits of MERGED, and show that.
FILE is what was merged, as in `qwen-companion-proposal-read-file', and
THEIRS its text."
  (let ((conflicts (qwen-companion-merge-result-conflicts merged))
        (edits (length (qwen-companion-merge-result-edits merged))))
    (qwen-companion-review--adopt-file proposal file)
    (with-current-buffer (qwen-companion-proposal-buffer proposal)
      (qwen-companion-merge-apply merged theirs)
      (qwen-companion-untrusted-show-hidden)
      (when (> conflicts 0)
        (qwen-companion-conflicts-begin nil nil nil)
        (message "qwen-companion: %d conflict%s in the proposal for %s with what was written since; resolve, then accept"
                 conflicts (if (= conflicts 1) "" "s")
                 (qwen-companion-proposal-display-path proposal))))
    (qwen-companion-review--set-note
     proposal (and (> edits 0) (= conflicts 0) "merged with what was written since"))
    (when-let* ((style (qwen-companion-proposal-style proposal)))
      (qwen-companion-review-refresh style proposal))
    (run-hooks 'qwen-companion-proposal-changed-hook)))

(defun qwen-companion-review--set-note (proposal note)
  "Show NOTE, a string or nil, in the header lines of PROPOSAL."
  (setf (qwen-companion-proposal-note proposal) note)
  (force-mode-line-update t))

(defun qwen-companion-review--examine (proposal)
  "Examine the file of PROPOSAL for risks again.
Refuse the next acceptance if there is a new one."
  (when (qwen-companion-proposal-examine proposal)
    (setf (qwen-companion-proposal-checked proposal) 'unseen)
    (force-mode-line-update t)))

(defconst qwen-companion-review--changes-on-disk
  '((same "on disk, as proposed" nil)
    (changed "on disk, changed meanwhile" "changed since")
    (deleted "not on disk any more" "deleted since"
             "was deleted or renamed after this was proposed, and accepting may make it anew")
    (directory "a directory on disk" "a directory since"
               "has become a directory, which the CLI cannot write"))
  "States of a file on disk: a list of (KIND SIDE NOTE SENTENCE).
SIDE describes the side of it, NOTE warns in a header line, SENTENCE says
it when the proposal is accepted.")

(defun qwen-companion-review--change-on-disk (proposal)
  "Return the state of PROPOSAL's file, which has changed since it came.
That is an entry of `qwen-companion-review--changes-on-disk'.  The disk
side has the text that is in the file now."
  (let ((path (qwen-companion-proposal-path proposal))
        (disk (qwen-companion-proposal-disk-buffer proposal)))
    (assq (cond ((file-directory-p path) 'directory)
                ((not (file-exists-p path)) 'deleted)
                ((and disk
                      (null (qwen-companion-proposal-left-before proposal))
                      (null (qwen-companion-proposal-line-end-summary proposal))
                      (with-current-buffer disk
                        (qwen-companion-disk-same-text-p
                         (qwen-companion-proposal-buffer proposal))))
                 'same)
                (t 'changed))
          qwen-companion-review--changes-on-disk)))

(defun qwen-companion-review--refresh-disk (proposal source)
  "Replace the text of PROPOSAL's disk side by the buffer SOURCE's."
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
  "Note if the file of PROPOSAL was written before the review is shown."
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
A change that makes it a risk to write the file is said once: accepting
again accepts.  A text that was written is merged first, and conflicts
with it are to be resolved, so no acceptance overwrites it."
  (qwen-companion-review-file-written (qwen-companion-proposal-path proposal))
  (qwen-companion-review--examine proposal)
  (let ((file (qwen-companion-proposal-display-path proposal))
        (stamp (qwen-companion-proposal-stamp proposal))
        (checked (qwen-companion-proposal-checked proposal))
        (warning (qwen-companion-proposal-warning proposal)))
    (cond
     ((and warning (eq checked 'unseen))
      (setf (qwen-companion-proposal-checked proposal) stamp)
      (user-error "%s has changed: %s; look at the review, or accept again to do so" file warning))
     ((qwen-companion-review--merge-file proposal t)
      (user-error "%s was written after this was proposed, which is being merged; look at the review, and accept again"
                  file))
     ((with-current-buffer (qwen-companion-proposal-buffer proposal)
        (qwen-companion-conflicts-p))
      (user-error "The proposal for %s has conflicts with what was written since; resolve them first" file))
     ((not (equal stamp (qwen-companion-proposal-checked proposal)))
      (setf (qwen-companion-proposal-checked proposal) stamp)
      (user-error "%s %s; look at the review, or accept again to do so" file
                  (or (nth 3 (qwen-companion-review--change-on-disk proposal))
                      "has changed"))))))

(defun qwen-companion-review-file (proposal)
  "Return the file name of PROPOSAL relative to its project, with its place.
If a link leads to another file that matters, return that file's name."
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
  "Return the warning about the file of PROPOSAL, to follow other text."
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
  "Return the buffer that the user is in, also while another window is drawn."
  (let ((window (old-selected-window)))
    (window-buffer (and (window-live-p window)
                        (or (and (window-minibuffer-p window) (minibuffer-selected-window))
                            window)))))

(defun qwen-companion-review-way ()
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
While the user is elsewhere than in this review, return how to get here."
  (if-let* ((way (qwen-companion-review-way)))
      `((-1 . ,(concat way " goes here")))
    (qwen-companion-header-mode-keys mode)))

(defun qwen-companion-review--selection-changed (_frame)
  "Update what reviews say of keys: others work where the user is now."
  (force-mode-line-update t)
  ;; In this hook, `old-selected-window' is still the previous window.
  (run-at-time 0 nil #'qwen-companion-review--update-selection))

(defun qwen-companion-review--update-selection ()
  "Update all reviews after another window was selected."
  (dolist (proposal (qwen-companion-proposals))
    (qwen-companion-review-selection-changed
     (qwen-companion-proposal-style proposal) proposal)))

(defun qwen-companion-review--set-header (side)
  "Set the header line of the current buffer to say that it is SIDE."
  (setq qwen-companion-review--side side
        header-line-format '((:eval (qwen-companion-review--header))))
  (force-mode-line-update))

(defun qwen-companion-review--header ()
  "Return the header line of a side: file, which side, warnings, the key to edit."
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
       ;; The control panel has the other keys.
       ,@(and (eq (current-buffer) (qwen-companion-proposal-buffer proposal))
              (qwen-companion-review-mode-keys 'qwen-companion-review-buffer-mode))))))

;;; Unsaved text of the user's

(defconst qwen-companion-review--unsaved-delay 0.1
  "Seconds without input before looking for unsaved text.")

(defvar qwen-companion-review--unsaved-timer nil
  "Timer that looks for unsaved text, or nil while no proposal is open.")

(defconst qwen-companion-review--saving-hooks
  '(after-save-hook after-revert-hook)
  "Hooks that run when a buffer ceases to be unsaved, even without input.")

(defun qwen-companion-review--watch ()
  "Look for unsaved text now, and regularly while proposals are open.
Keep the keys in their header lines true meanwhile."
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
  "Look for unsaved text after the current command or event."
  (run-at-time 0 nil #'qwen-companion-review-check-unsaved))

(defun qwen-companion-review-check-unsaved ()
  "Note in the reviews whether the user has unsaved text of their files.
Text that is no longer unsaved may be on disk now."
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
      (run-hooks 'qwen-companion-proposal-changed-hook))))

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
If the user has put other things in its windows, it has to be reopened."
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
    (qwen-companion-review--show-without proposal)
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
  "Seconds in which answers to a review that the CLI has ended are caught.")

(defun qwen-companion-review--catch-keys (proposal)
  "Catch a late key that was meant to answer the review of PROPOSAL.
The review was selected and the CLI has ended it.  Catch the next key
only, and only for a moment."
  (let ((map (make-sparse-keymap))
        (late (lambda ()
                (interactive)
                (message "qwen-companion: the review of %s has ended before you answered"
                         (qwen-companion-proposal-display-path proposal)))))
    (dolist (command '(qwen-companion-diff-accept qwen-companion-diff-accept-next
                       qwen-companion-diff-reject))
      (dolist (key (where-is-internal command (list qwen-companion-review-buffer-mode-map)))
        (define-key map key late)))
    (run-at-time qwen-companion-review--late-key-seconds nil (set-transient-map map))))

;;; Showing without disturbing

(defvar qwen-companion-review--timers nil
  "Timers that wait for a good moment to show a proposal.")

(defvar qwen-companion-review--awaiting nil
  "Accepted proposal whose windows wait for the next one of its CLI, or nil.")

(defvar qwen-companion-review--styles nil
  "Front ends that the user has chosen for the rest of a turn: (SESSION . STYLE).")

(defun qwen-companion-review--announce (proposal)
  "Tell the user that PROPOSAL has come, and schedule its review.
Say nothing of one that the user has asked for."
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (qwen-companion-review-buffer-mode 1))
  (force-mode-line-update t)
  (unless (qwen-companion-proposal-asked-for-p proposal)
    (message "qwen-companion: %s %s%s%s"
             (qwen-companion-untrusted-text
              (qwen-companion-proposal-client proposal))
             (qwen-companion-proposal-summary proposal)
             (qwen-companion-review-warning-hint proposal)
             (cond
              ((qwen-companion-review--awaited-p proposal) "")
              ((and (qwen-companion-review--ediff-visible-p) (not (qwen-companion-review-shown)))
               "; it waits until the Ediff session is over")
              ((and (memq qwen-companion-diff-arrival '(idle now))
                    (not (qwen-companion-review--room-p proposal)))
               "; no room to show it beside this window: M-x qwen-companion-review does")
              (t ""))))
  (qwen-companion-review-schedule))

(add-hook 'qwen-companion-proposal-begun-functions #'qwen-companion-review--announce)

(defun qwen-companion-review-schedule ()
  "Schedule the review of the next unseen proposal for a good moment.
Call this after each change of the open proposals or their states."
  (mapc #'cancel-timer qwen-companion-review--timers)
  (setq qwen-companion-review--timers nil)
  (when (and (qwen-companion-review--unseen)
             (or (memq qwen-companion-diff-arrival '(idle now))
                 qwen-companion-review--awaiting))
    (setq qwen-companion-review--timers
          ;; The second timer notices a state that ends without input.
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
That is its own terminal if that is known, else each one that was
started in a directory above the file."
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
  "Return the frame for opening PROPOSAL unasked, or nil to wait.
That is the frame of its terminal, else the selected one.  Return nil
when the terminal is in a tab that is not selected."
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
      ;; A command waits for a key or a process, or a key sequence or its
      ;; argument is not complete.
      this-command
      prefix-arg
      (not (equal [] (this-single-command-keys)))
      (bound-and-true-p isearch-mode)
      (bound-and-true-p transient--prefix)
      executing-kbd-macro
      defining-kbd-macro
      ;; A drag.  In Eat it is t by itself where the program wants the mouse.
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
Display that without selecting it, and not if that would disturb the user."
  (qwen-companion-rescue-compare
   buffer
   (lambda (difference)
     (unless (qwen-companion-review--busy-p)
       (display-buffer difference '(nil (inhibit-same-window . t)))))))

(add-hook 'qwen-companion-proposal-miswritten-functions
          #'qwen-companion-review--show-miswritten)

(defun qwen-companion-review--idle-p ()
  "Return non-nil when there was no input for long enough to show a proposal."
  (or (not (or (eq qwen-companion-diff-arrival 'idle)
               ;; Also where the option is `command': the next key may be its.
               (and qwen-companion-review--awaiting
                    (eq qwen-companion-diff-arrival 'command))))
      (when-let* ((idle (current-idle-time)))
        ;; Less than nothing when the clock was set back since.
        (>= (abs (float-time idle)) qwen-companion-review--idle-delay))))

(defun qwen-companion-review--room-p (proposal)
  "Return non-nil when PROPOSAL may open by itself without taking a window.
To take the selected one would send the next keys elsewhere."
  (or qwen-companion-diff-select
      (qwen-companion-review-fits-p 'unified proposal nil)))

(defun qwen-companion-review--show-next ()
  "Show the oldest unseen proposal, unless that would disturb the user.
While one is awaited in the selected window, show only that, there."
  (when (and (qwen-companion-review--idle-p)
             (not (qwen-companion-review--busy-p)))
    (cond
     ((null qwen-companion-review--awaiting)
      (when-let* ((proposal (cl-find-if (lambda (proposal)
                                          (and (qwen-companion-review-arrival-frame proposal)
                                               (qwen-companion-review--room-p proposal)))
                                        (qwen-companion-review--unseen))))
        (qwen-companion-review--display proposal qwen-companion-diff-select)))
     ((eq qwen-companion-review--awaiting
          (buffer-local-value 'qwen-companion-proposal-current (window-buffer)))
      (when-let* ((next (cl-find-if #'qwen-companion-review--awaited-p
                                    (qwen-companion-review--unseen))))
        (qwen-companion-review--show-after
         qwen-companion-review--awaiting next
         (qwen-companion-review-place 'waiting qwen-companion-review--awaiting))))
     ;; The user has gone elsewhere: it comes as any other.
     (t (qwen-companion-review-stop-waiting)))))

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
    ;; The CLI was offered reviews before the option became nil.
    (let ((style (or (qwen-companion-review-style (qwen-companion-proposal-kind proposal) proposal)
                     qwen-companion-diff-style
                     'ediff)))
      (setf (qwen-companion-proposal-style proposal)
            (if (qwen-companion-review-fits-p style proposal select)
                style
              'unified))))
  (condition-case err
      (qwen-companion-spool-without-collecting
        (unless (qwen-companion-proposal-disk-buffer proposal)
          (qwen-companion-review--prepare proposal))
        (setf (qwen-companion-proposal-state proposal) 'shown)
        (qwen-companion-review-show (qwen-companion-proposal-style proposal) proposal select)
        ;; Before garbage is collected.
        (redisplay))
    (error (qwen-companion-review-fall-back proposal err select)))
  ;; Timers and processes run in the front end, and one may end it.
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
        (message "qwen-companion: the review of %s could not be shown (%s); the proposal is in %s"
                 (qwen-companion-proposal-display-path proposal)
                 (error-message-string err)
                 (buffer-name (qwen-companion-proposal-buffer proposal)))
      (setf (qwen-companion-proposal-style proposal) 'unified)
      (qwen-companion-review--display proposal select)
      (message "qwen-companion: Ediff cannot show %s (%s); here it is hunk by hunk"
               (qwen-companion-proposal-display-path proposal)
               (error-message-string err)))))

(defun qwen-companion-review-frame-deleted (frame)
  "Schedule the review that was shown in FRAME, which was deleted, again."
  (dolist (proposal (copy-sequence (qwen-companion-proposals)))
    (when (and (eq (qwen-companion-proposal-state proposal) 'shown)
               (eq frame (qwen-companion-review-frame
                          (qwen-companion-proposal-style proposal) proposal)))
      (setf (qwen-companion-proposal-seen proposal) nil)
      (qwen-companion-review--put-aside proposal)
      (qwen-companion-review-schedule))))

(defun qwen-companion-diff-bury ()
  "Put the review aside; the proposal stays open.
\\[qwen-companion-diff-open] brings it back."
  (interactive)
  (let ((proposal (qwen-companion-review--find nil "put aside")))
    (when (eq (qwen-companion-proposal-state proposal) 'shown)
      (qwen-companion-review--put-aside proposal))
    (qwen-companion-review-schedule)
    (message "qwen-companion: %s waits for your answer (M-x qwen-companion-review)"
             (qwen-companion-proposal-display-path proposal))))

;;; Commands

(defun qwen-companion-review--find (file verb)
  "Return the open proposal on which a command acts.
FILE is a file name, a proposal, or nil for that of the current buffer
or terminal, else the only one.  Signal a `user-error' that names the
command by VERB, a string, when there is none or several."
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
  "Return the open proposals of the CLI in the terminal BUFFER, oldest first."
  (cl-remove-if-not
   (lambda (proposal)
     (eq buffer (qwen-companion-review--own-terminal proposal)))
   (qwen-companion-proposals)))

(defun qwen-companion-review--candidates ()
  "Return the proposals on which a command in the current buffer may act."
  (if qwen-companion-proposal-current
      (list qwen-companion-proposal-current)
    (or (qwen-companion-review-of-terminal (current-buffer))
        (qwen-companion-proposals))))

(defun qwen-companion-review--read (verb)
  "Ask which proposal to VERB, a string, if there are several candidates."
  (let ((candidates (qwen-companion-review--candidates)))
    (when (cdr candidates)
      (qwen-companion-completion-read
       (format "%s which proposal: " verb) (qwen-companion-review--choices candidates)
       'qwen-companion-proposal #'qwen-companion-review--annotation))))

(defun qwen-companion-review--annotation (proposal)
  "Return when PROPOSAL came and whether it is shown, for completion."
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
  "Signal a `user-error' if the CLI cannot be told the text of PROPOSAL."
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (when (and (zerop (buffer-size))
               (not (qwen-companion-proposal-answer proposal))
               (not (qwen-companion-proposal-held proposal))
               (not (qwen-companion-proposal-empty proposal)))
      (user-error "The CLI cannot be told that a file is empty: it would write its own text.  M-x qwen-companion-diff-empty rejects the proposal and empties the file's buffer"))
    (save-restriction
      (widen)
      (when-let* ((odd (unencodable-char-position (point-min) (point-max) 'utf-8)))
        (user-error "Character %d of the text cannot be encoded as UTF-8; remove it first"
                    odd)))))

(defun qwen-companion-review-check-answerable (proposal)
  "Signal a `user-error' when only the terminal takes an answer to PROPOSAL."
  (when (eq 'left (qwen-companion-proposal-released proposal))
    (user-error "Answer in the terminal: %s" (qwen-companion-proposal-note proposal))))

;;;###autoload
(defun qwen-companion-diff-accept (&optional file)
  "Accept a proposal with your edits; the CLI writes it.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one."
  (interactive (list (qwen-companion-review--read "Accept")))
  (let ((proposal (qwen-companion-review--find file "accept")))
    (qwen-companion-review-check-answerable proposal)
    (qwen-companion-spool-without-collecting
      (qwen-companion-proposal-decide
       proposal 'accepted
       (qwen-companion-review-answer (qwen-companion-proposal-kind proposal) proposal)))
    (message "qwen-companion: accepted %s%s"
             (qwen-companion-proposal-display-path proposal)
             (if-let* ((others (qwen-companion-proposals-of-file
                                (qwen-companion-proposal-path proposal))))
                 (format "; the proposal of %s for it still waits"
                         (mapconcat #'qwen-companion-proposal-client others ", "))
               ""))))

(defun qwen-companion-review--read-reason (proposal)
  "Read why PROPOSAL is rejected; return nil for nothing."
  (unless (qwen-companion-proposal-held proposal)
    (qwen-companion-header-error
     "This CLI takes no reason with a rejection; \\[qwen-companion-diff-comment] comments on a line"))
  (let ((reason (string-trim (read-string "Reason, for the model: "))))
    (and (not (string-empty-p reason)) reason)))

;;;###autoload
(defun qwen-companion-diff-reject (&optional file reason)
  "Reject a proposal; nothing is written.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one.  With a prefix argument, read a REASON,
which the model is told; a CLI in its mode \"default\" takes none."
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
Use it to accept that a file becomes empty, which a CLI cannot be told.
Emptying is one change to undo, and saving is up to you.

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
    (message "qwen-companion: rejected; this buffer is empty, not saved yet")))

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
                   ;; It is on a display where the user is not.
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
      (user-error "You have no unsaved text of %s"
                  (qwen-companion-proposal-display-path proposal)))
     (t
      (qwen-companion-review--make-unsaved-copy proposal)
      (qwen-companion-review--update-sides proposal)
      (unless (eq proposal (qwen-companion-review-shown))
        (qwen-companion-diff-open proposal))))))

(defun qwen-companion-diff-show-warnings ()
  "Show all that the header line of this review warns of, in full.
In a narrow window, the header line has the beginnings only."
  (interactive)
  (let ((warnings (cl-loop for (_ . text) in (qwen-companion-review-warning-parts
                                              (qwen-companion-review--find nil "show the warnings of"))
                           when text
                           collect (substring-no-properties (if (consp text) (car text) text)))))
    (unless warnings
      (user-error "There is no warning about this proposal"))
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
    (qwen-companion-review--keep-style proposal)
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
  "Return PROPOSALS, those with the same KEY together, each where the first is."
  (mapcan (lambda (value)
            (seq-filter (lambda (proposal) (equal value (funcall key proposal))) proposals))
          (delete-dups (mapcar key proposals))))

(defun qwen-companion-review--after (proposal &optional back)
  "Return the open proposal after PROPOSAL, or with BACK the one before it.
After the last one comes the first.  If PROPOSAL is not open, return nil."
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
proposal of its CLI; from elsewhere to the one on the screen, else to
the oldest.  With BACK non-nil, go to the one before."
  (interactive)
  (let ((proposal (or (qwen-companion-review--after qwen-companion-proposal-current back)
                      (car (qwen-companion-review-of-terminal (current-buffer)))
                      (qwen-companion-review-shown)
                      (car (qwen-companion-proposals))
                      (user-error "Nothing to review: no proposal waits"))))
    (qwen-companion-diff-open proposal)
    ;; Without a message, after M-x Emacs looks at once for a shorter name of
    ;; the command, for a second, in which no hunk would be drawn.
    (message "%s" (qwen-companion-review-name proposal))))

;;;###autoload
(defun qwen-companion-review-previous ()
  "Go to the open proposal before this one, see `qwen-companion-review'."
  (interactive)
  (qwen-companion-review t))

;;; From one proposal of a turn to the next

(defconst qwen-companion-review--wait-seconds 5
  "Seconds to wait for another proposal of a CLI whose turn has no known end.")

(defun qwen-companion-review--activity (session)
  "Return the activity of the CLI of SESSION, an id; nil when it has gone."
  (when-let* ((session (qwen-companion-backend-session session)))
    (or (qwen-companion-cli-state-activity (qwen-companion-session-state session))
        'unknown)))

(defun qwen-companion-review--awaited-p (proposal)
  "Return non-nil when PROPOSAL is the awaited next one of its CLI."
  (and qwen-companion-review--awaiting
       (equal (qwen-companion-proposal-session proposal)
              (qwen-companion-proposal-session qwen-companion-review--awaiting))))

(defun qwen-companion-review--keep-style (proposal)
  "Show the proposals of PROPOSAL's CLI in its style until the turn has ended."
  (let ((session (qwen-companion-proposal-session proposal)))
    (when (and (memq (qwen-companion-review--activity session) '(working asking))
               (qwen-companion-proposal-file-p proposal))
      (setf (alist-get session qwen-companion-review--styles nil nil #'equal)
            (qwen-companion-proposal-style proposal)))))

(defun qwen-companion-review--show-after (proposal next place)
  "Show NEXT, selected, in PLACE, after PROPOSAL was accepted there.
If both are of one CLI, show NEXT in the same style."
  (when (and (equal (qwen-companion-proposal-session proposal)
                    (qwen-companion-proposal-session next))
             (qwen-companion-proposal-file-p proposal)
             (qwen-companion-proposal-file-p next)
             (not (qwen-companion-proposal-style next)))
    (setf (qwen-companion-proposal-style next) (qwen-companion-proposal-style proposal)))
  (qwen-companion-review-replace next place))

(defun qwen-companion-review--wait (proposal place)
  "Wait in PLACE for the next proposal of the CLI of PROPOSAL, which has ended.
Keys go nowhere meanwhile: in the terminal one could answer unseen."
  (setq qwen-companion-review--awaiting proposal)
  (qwen-companion-review-show 'waiting proposal place)
  (when (eq 'unknown (qwen-companion-review--activity
                      (qwen-companion-proposal-session proposal)))
    (run-at-time qwen-companion-review--wait-seconds nil
                 #'qwen-companion-review--waited proposal)))

(defun qwen-companion-review--waited (proposal)
  "Stop waiting for the proposal after PROPOSAL: it should have come by now."
  (when (eq proposal qwen-companion-review--awaiting)
    (qwen-companion-review-stop-waiting)))

(defun qwen-companion-review-stop-waiting ()
  "Wait no longer for the next proposal of a CLI; restore the windows."
  (interactive (qwen-companion-buffers-require-mode 'qwen-companion-waiting-mode)
               qwen-companion-waiting-mode)
  (when-let* ((proposal qwen-companion-review--awaiting))
    (setq qwen-companion-review--awaiting nil)
    (qwen-companion-review-hide 'waiting proposal)
    (qwen-companion-review-schedule)))

(defun qwen-companion-review-sessions-changed ()
  "Forget the kept style and the wait of each CLI that is in no turn any more."
  (let ((over-p (lambda (session)
                  (memq (qwen-companion-review--activity session)
                        '(nil idle cancelled)))))
    (setq qwen-companion-review--styles
          (cl-delete-if over-p qwen-companion-review--styles :key #'car))
    (when-let* ((proposal qwen-companion-review--awaiting)
                ((funcall over-p (qwen-companion-proposal-session proposal))))
      (message "qwen-companion: %s has proposed all changes of its turn"
               (qwen-companion-untrusted-text (qwen-companion-proposal-client proposal)))
      (qwen-companion-review-stop-waiting))))

;;;###autoload
(defun qwen-companion-diff-accept-next (&optional file)
  "Accept a proposal with your edits and go to the next one.
If none waits, but the CLI is in the middle of a turn, wait for its next
one in the place of this one.

Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one."
  (interactive (list (qwen-companion-review--read "Accept")))
  (let* ((proposal (qwen-companion-review--find file "accept"))
         (next (qwen-companion-review--after proposal))
         (place (qwen-companion-review-place
                 (qwen-companion-proposal-style proposal) proposal)))
    (qwen-companion-diff-accept proposal)
    (cond
     ((not (eq next proposal))
      (qwen-companion-review--show-after proposal next place))
     ((and (not (qwen-companion-proposal-answer proposal))
           (memq (qwen-companion-review--activity
                  (qwen-companion-proposal-session proposal))
                 '(working asking unknown)))
      (qwen-companion-review--wait proposal place)))))

;;; Repeated keys

;; Keys that do the same, or nothing, where one gets to by them.
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
   "i" #'qwen-companion-terminal-escape
   ;; Autoloaded: the list needs this file.
   "l" 'qwen-companion-diffs)
  "Keymap for reviews in a terminal, behind a prefix key.")

;; C-c and a punctuation character is for minor modes by convention.  The
;; CLIs know single keys only (qwen 0.24: Ctrl or Alt with a letter and the
;; arrows), and C-c never reaches them by itself: vterm, eat and term all
;; take it as a prefix, C-c C-c sends it.  Behind it vterm and eat have
;; control keys, and term has the keys of C-x, of which `,' is none.
(defvar qwen-companion-review-keys-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "C-c")
                `(menu-item "" ,(let ((prefix (make-sparse-keymap)))
                                  ;; Which-key shows the name.
                                  (define-key prefix ","
                                              (cons "qwen-companion"
                                                    qwen-companion-review-command-map))
                                  (dolist (key '("C-c" "C-k"))
                                    (define-key prefix (kbd key)
                                                '(menu-item "" qwen-companion-review-ask
                                                            :filter qwen-companion-review--while-waiting)))
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
  "Return BINDING where term sends all keys to its program, else nil."
  (and (derived-mode-p 'term-mode) (eq (current-local-map) term-raw-map) binding))

(defun qwen-companion-review--while-waiting (command)
  "Return COMMAND if a review of the CLI in this terminal waits, else nil."
  (and (qwen-companion-review-of-terminal (current-buffer)) command))

(defun qwen-companion-review-ask ()
  "Ask whether to accept or reject the waiting proposal of this terminal's CLI.
Its review shows this key as its own while the terminal is selected.  The
third answer is what the key does in the terminal otherwise."
  (interactive)
  (let* ((waiting (or (qwen-companion-review-of-terminal (current-buffer))
                      (user-error "No review of the CLI in this buffer waits")))
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
            ;; Terminals send the key that was pressed, which is the answer now.
            (execute-kbd-macro keys))))))

(define-minor-mode qwen-companion-review-keys-mode
  "Minor mode of the terminals in which a CLI was started.
\\<qwen-companion-review-keys-mode-map>\\[qwen-companion-review] goes to the review of the CLI in this terminal,
\\[qwen-companion-diff-accept] accepts its proposal, \\[qwen-companion-diff-reject] rejects it, and
\\[qwen-companion-diffs] lists all proposals that wait.
While a review of the CLI waits, \\[qwen-companion-review-ask] asks whether to accept or reject.
\\[qwen-companion-terminal-escape] sends Esc, which interrupts the CLI; in a text terminal,
where the key Esc does not reach it, the mode line says so."
  :lighter (:eval (qwen-companion-review--escape-hint))
  :interactive nil
  :keymap qwen-companion-review-keys-mode-map)

(defun qwen-companion-review--escape-hint ()
  "Return the mode line's part about Esc, or nil where the key itself works.
In the buffer of a terminal outside of Emacs no key does."
  (unless (or (display-graphic-p) qwen-companion-terminal-outside)
    (substitute-command-keys " Esc:\\[qwen-companion-terminal-escape]")))

(defun qwen-companion-review--terminal-prefix (keymap)
  "Return KEYMAP if its first key is a prefix here anyway, else nil.
It is none in a terminal that sends every key to its program, like eat in
its char mode, or term with another `term-escape-char'."
  (let ((qwen-companion-review-keys-mode nil))
    (and (keymapp (key-binding (kbd "C-c"))) keymap)))

(defun qwen-companion-review--add-keys ()
  "Enable the keys for reviews in the current buffer, a new terminal."
  (when qwen-companion-terminal-keys
    (qwen-companion-review-keys-mode 1)))

(add-hook 'qwen-companion-terminal-opened-hook #'qwen-companion-review--add-keys)

(provide 'qwen-companion-review)
;;; qwen-companion-review.el ends here
