;;; qwen-companion-changes.el --- Everything the agents did, turn by turn  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `qwen-companion-changes' shows all changes by CLIs, turn by turn or over a
;; longer time, for every tool and approval mode.  A region of lines, a hunk,
;; a file or a turn can be marked as seen, commented on, undone and brought
;; back.  This file has the mode and its commands;
;; qwen-companion-changes-items.el makes the contents.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-changes-comments)
(require 'qwen-companion-changes-commit)
(require 'qwen-companion-changes-file)
(require 'qwen-companion-changes-here)
(require 'qwen-companion-changes-items)
(require 'qwen-companion-changes-merge)
(require 'qwen-companion-changes-signs)
(require 'qwen-companion-changes-undo)
(require 'qwen-companion-compare)
(require 'qwen-companion-completion)
(require 'qwen-companion-disk)
(require 'qwen-companion-header)
(require 'qwen-companion-hunks)
(require 'qwen-companion-hunks-view)
(require 'qwen-companion-items)
(require 'qwen-companion-journal)
(require 'qwen-companion-kept-plans)
(require 'qwen-companion-messages)
(require 'qwen-companion-recover)
(require 'qwen-companion-rewind)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

;;; Updating

(defun qwen-companion-changes--changed (paths)
  "Update the visible part of PATHS, a list of files, or of all files if t."
  (when-let* ((buffer (qwen-companion-changes-items-buffer)))
    (with-current-buffer buffer
      (when (and (eq paths t) (hash-table-empty-p qwen-companion-changes-items-seen))
        (qwen-companion-changes-items-note-seen))
      (qwen-companion-changes-items-reload paths)
      (qwen-companion-changes-items-request-scope-files)
      (qwen-companion-changes-items-update-soon))))

(defun qwen-companion-changes--state-changed (state)
  "Update the buffer for STATE of the companion; close it when that is `off'."
  (if (eq state 'off)
      (qwen-companion-changes-close)
    (when-let* ((buffer (qwen-companion-changes-items-buffer)))
      (with-current-buffer buffer
        (qwen-companion-changes-items-update-soon)))))

;;; Moving and folding

(defun qwen-companion-changes--starts ()
  "Return the positions of the headings and hunks, from the top."
  (let (starts)
    (pcase-dolist (`(,key ,start . ,_) (qwen-companion-items-bounds))
      (when (memq (car key) '(group file))
        (push start starts)))
    (save-excursion
      (goto-char (point-min))
      (when (qwen-companion-hunks-view-hunk-at (point))
        (push (point) starts))
      (while (qwen-companion-hunks-view-goto-hunk (point) nil)
        (push (point) starts)))
    (sort starts #'<)))

(defun qwen-companion-changes--go-forward (count)
  "Go to the COUNTth turn, file or hunk from point."
  (dotimes (_ (abs count))
    (goto-char
     (or (if (> count 0)
             (cl-find-if (lambda (start) (> start (point)))
                         (qwen-companion-changes--starts))
           (cl-find-if (lambda (start) (< start (point)))
                       (reverse (qwen-companion-changes--starts))))
         (user-error "No more items %s"
                     (if (> count 0) "below" "above"))))))

;;;###autoload
(defun qwen-companion-changes-next (&optional count)
  "Go to the next turn, file or hunk, or forward by COUNT of them.
In a file, go to the next unseen change of an agent, there or in another."
  (interactive "p")
  (if (derived-mode-p 'qwen-companion-changes-mode)
      (qwen-companion-changes--go-forward (or count 1))
    (qwen-companion-changes-here-next (or count 1))))

;;;###autoload
(defun qwen-companion-changes-previous (&optional count)
  "Go to the previous turn, file, hunk or unseen change, or back by COUNT."
  (interactive "p")
  (qwen-companion-changes-next (- (or count 1))))

(defun qwen-companion-changes-toggle-fold ()
  "Fold or unfold the turn or file at point."
  (interactive nil qwen-companion-changes-mode)
  (let ((key (pcase (qwen-companion-items-key-at (point))
               ((and `(,(or 'group 'file) . ,_) key) key)
               (`(body ,group ,path) (list 'file group path))
               (`(note ,group ,_) (list 'group group))
               (_ (user-error "Not on a turn or a file")))))
    (qwen-companion-items-toggle key)
    (qwen-companion-changes-items-update)))

(defun qwen-companion-changes-visit ()
  "Visit the line at point in its file, in another window.
On the heading of a turn, fold or unfold it; on a button, push it."
  (interactive nil qwen-companion-changes-mode)
  (if-let* ((press (get-text-property (point) 'qwen-companion-hunks-view-action)))
      (funcall press)
    (if-let* ((path (qwen-companion-changes-items-path-at-point)))
        (let* ((hunk (qwen-companion-hunks-view-hunk-at (point)))
               (line (and hunk (cdr (qwen-companion-hunks-view-lines-at))))
               (text (and hunk
                          (memq (car-safe (qwen-companion-hunks-view-source-at (point)))
                                '(context added))
                          (buffer-substring-no-properties
                           (min (line-end-position) (1+ (line-beginning-position)))
                           (line-end-position)))))
          (unless (file-exists-p path)
            (qwen-companion-header-error "%s no longer exists; \\[qwen-companion-changes-undo] undoes a deletion"
                        (qwen-companion-untrusted-path path)))
          (pop-to-buffer (find-file-noselect path))
          (when line
            (qwen-companion-changes--goto-line line text)))
      (qwen-companion-changes-toggle-fold))))

(defun qwen-companion-changes-describe ()
  "Describe the hunk at point in words, for users who cannot see its colours."
  (interactive nil qwen-companion-changes-mode)
  (let ((hunk (or (qwen-companion-hunks-view-hunk-at (point))
                  (qwen-companion-header-error
                   "Not on a hunk; \\[qwen-companion-changes-toggle-fold] unfolds a file")))
        (difference (qwen-companion-hunks-view-difference-at (point))))
    (qwen-companion-changes-items-current-view (qwen-companion-changes-items-view-at-point))
    (message "%s%s"
             (if (qwen-companion-hunks-dropped-p hunk) "Undone.  " "")
             (mapconcat (lambda (change)
                          (qwen-companion-hunks-view-describe difference change))
                        (qwen-companion-hunks-hunk-changes hunk) "  "))))

(defun qwen-companion-changes-visit-clicked (event)
  "Fold, unfold or visit the item clicked with EVENT."
  (interactive "e" qwen-companion-changes-mode)
  (mouse-set-point event)
  (if (memq (car-safe (qwen-companion-items-key-at (point))) '(file note))
      (qwen-companion-changes-toggle-fold)
    (qwen-companion-changes-visit)))

(defun qwen-companion-changes--goto-line (line text)
  "Go to LINE of the current buffer, or if it moved, to the nearest with TEXT."
  (widen)
  (push-mark nil t)
  (goto-char (point-min))
  (forward-line (1- line))
  (when text
    (let* ((pattern (concat "^" (regexp-quote text) "$"))
           (case-fold-search nil)
           (below (save-excursion (and (re-search-forward pattern nil t)
                                       (match-beginning 0))))
           (above (save-excursion (and (re-search-backward pattern nil t)
                                       (match-beginning 0)))))
      (cond ((and below above)
             (goto-char (if (< (- (point) above) (- below (point))) above below)))
            ((or below above) (goto-char (or below above)))))))

;;; What is shown

(defun qwen-companion-changes--show (scope &optional root)
  "Show SCOPE, see `qwen-companion-changes-items-scope', of ROOT or of all."
  (qwen-companion-buffers-require-mode 'qwen-companion-changes-mode)
  (unless (equal (cons scope root)
                 (cons qwen-companion-changes-items-scope qwen-companion-changes-items-root))
    (qwen-companion-changes-items-forget-views)
    (setq qwen-companion-changes-items-scope scope
          qwen-companion-changes-items-root root
          qwen-companion-changes-items-scope-files nil
          qwen-companion-changes-items-auto-unfold t))
  (qwen-companion-changes-items-request-scope-files)
  (qwen-companion-changes-items-update))

(defun qwen-companion-changes--turn-at-point ()
  "Return the turn at point, else the newest one of an agent."
  (or (let ((id (cadr (qwen-companion-items-key-at (point)))))
        (and (stringp id) (qwen-companion-journal-turn id)))
      (cl-find 'agent (qwen-companion-changes-items-shown-turns)
               :key #'qwen-companion-turn-who)
      (user-error "No CLI has changed a file yet")))

(defun qwen-companion-changes-show-turns ()
  "Show each turn by itself."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--show 'turns qwen-companion-changes-items-root))

(defun qwen-companion-changes-show-since ()
  "Show each change since the turn at point began, or the newest one."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--show
   (list 'since (qwen-companion-turn-id (qwen-companion-changes--turn-at-point)))))

(defun qwen-companion-changes-show-session ()
  "Show each change in the session of the turn at point, or the newest one."
  (interactive nil qwen-companion-changes-mode)
  (let ((session (qwen-companion-turn-session (qwen-companion-changes--turn-at-point))))
    (when (string-empty-p session)
      (user-error "The conversation of this turn is unknown"))
    (qwen-companion-changes--show (list 'session session))))

(defun qwen-companion-changes-show-plan ()
  "Show the plan of the turn at point, or the newest one.
That is the last plan approved in its conversation before the turn ended."
  (interactive nil qwen-companion-changes-mode)
  (let* ((turn (qwen-companion-changes--turn-at-point))
         (root (qwen-companion-turn-root turn)))
    (qwen-companion-kept-plans-request
     root (qwen-companion-turn-session turn)
     (lambda (plans)
       (if-let* ((plan (cl-find-if (lambda (plan)
                                     (or (null (qwen-companion-turn-end turn))
                                         (<= (qwen-companion-kept-plan-time plan)
                                             (qwen-companion-turn-end turn))))
                                   plans)))
           (qwen-companion-kept-plans-show plan root)
         (message "No plan was approved in this conversation before the end of the turn"))))))

(defun qwen-companion-changes-show-unseen ()
  "Show each change that is not marked as seen."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--show 'look qwen-companion-changes-items-root))

(defun qwen-companion-changes-show-since-commit ()
  "Show all differences from the last commit, the user's included."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--show 'commit qwen-companion-changes-items-root))

(defun qwen-companion-changes-toggle-seen ()
  "Toggle the display of each change that is marked as seen."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-changes-mode)
  (setq qwen-companion-changes-items-all (not qwen-companion-changes-items-all))
  (unless qwen-companion-changes-items-all
    (qwen-companion-changes-items-note-seen))
  (qwen-companion-changes-items-update)
  (message (if qwen-companion-changes-items-all "Seen changes are shown too"
             "Only unseen changes are shown")))

(defun qwen-companion-changes-toggle-client ()
  "Show each turn of the CLI at point only, or of all CLIs."
  (interactive nil qwen-companion-changes-mode)
  (setq qwen-companion-changes-items-client
        (and (not qwen-companion-changes-items-client)
             (qwen-companion-turn-client (qwen-companion-changes--turn-at-point))))
  (qwen-companion-changes-items-update))

(defun qwen-companion-changes--revert (&rest _)
  "Reload everything, and hide each change seen so far."
  (qwen-companion-changes-items-note-seen)
  (qwen-companion-changes-items-reload t)
  (qwen-companion-changes-items-request-scope-files)
  (qwen-companion-changes-items-update))

;;; Seen

;;;###autoload
(defun qwen-companion-changes-mark-seen (&optional unseen)
  "Mark the hunk, file or turn at point as seen and go on to the next.
It stays visible until the buffer is opened again.  With a prefix argument
UNSEEN, mark it as not seen."
  (interactive "P")
  (qwen-companion-changes-items-on-change
    (let* ((group (qwen-companion-changes-items-group-at-point))
           (path (qwen-companion-changes-items-path-at-point))
           (hunk (qwen-companion-hunks-view-hunk-at (point)))
           (view (and hunk (qwen-companion-changes-items-current-view
                            (qwen-companion-changes-items-view-at-point))))
           (keys (and hunk
                      (mapcar (apply-partially #'qwen-companion-changes-file-key view)
                              (qwen-companion-hunks-hunk-changes hunk)))))
      (dolist (turn (qwen-companion-changes--turns-of group path))
        (qwen-companion-backend-call
         'journal-seen (list :turn turn :path path :hunks keys :seen (not unseen))))
      (if unseen
          (message "Marked as not seen")
        (message "Marked as seen")
        (ignore-error user-error
          (qwen-companion-changes--skip-item group path hunk))))))

(defun qwen-companion-changes--skip-item (group path hunk)
  "Move point to the next item after PATH of GROUP, or after its HUNK."
  (cond
   (hunk (qwen-companion-changes--go-forward 1))
   (t
    (let* ((key (if path
                    (qwen-companion-changes-items-file-key group path)
                  (list 'group (qwen-companion-changes-items-group-id group))))
           (next (cl-find-if (lambda (item)
                               (memq (car (car item)) (if path '(group file) '(group))))
                             (cdr (cl-member key (qwen-companion-items-bounds)
                                             :key #'car :test #'equal)))))
      (when next
        (goto-char (cadr next)))))))

(defun qwen-companion-changes--turns-of (group path)
  "Return the id of each turn of GROUP in which PATH was changed.
PATH nil stands for any file."
  (if-let* ((turn (qwen-companion-changes-items-group-turn group)))
      (list turn)
    (cl-loop for turn in (qwen-companion-journal-turns)
             when (and (equal (qwen-companion-turn-root turn)
                              (qwen-companion-changes-items-group-root group))
                       (or (null path) (qwen-companion-journal-file turn path)))
             collect (qwen-companion-turn-id turn))))

;;; Comparing and copying

;;;###autoload
(defun qwen-companion-changes-ediff ()
  "Compare the file at point with its text before the turn, in Ediff."
  (interactive)
  (qwen-companion-changes-items-on-change
    (pcase-let* ((`(,group . ,path) (qwen-companion-changes-items-file-at-point))
                 (step (qwen-companion-changes-undo-step group path)))
      (when (qwen-companion-undo-step-binary step)
        (user-error "%s is a binary file" (qwen-companion-untrusted-path path)))
      (unless (file-exists-p path)
        (qwen-companion-header-error "%s no longer exists; \\[qwen-companion-changes-undo] undoes a deletion"
                                     (qwen-companion-untrusted-path path)))
      (let* ((current (find-file-noselect path))
             (before (qwen-companion-compare-side
                      path "before"
                      (decode-coding-string
                       (or (qwen-companion-undo-step-target step) "")
                       (or (buffer-local-value 'buffer-file-coding-system current) 'utf-8)))))
        (condition-case err
            (qwen-companion-compare-sides before current (list before))
          (error (user-error "Ediff cannot compare them: %s" (error-message-string err))))))))

;;;###autoload
(defun qwen-companion-changes-compare-with-proposal ()
  "Show how the file at point, as written, differs from the CLI's proposal."
  (interactive)
  (qwen-companion-changes-items-on-change
    (pcase-let* ((`(,group . ,path) (qwen-companion-changes-items-file-at-point))
                 (turn (or (qwen-companion-journal-turn
                            (plist-get (qwen-companion-changes-items-group-part group) :turn))
                           (qwen-companion-header-error
                            "This view has no proposals; \\[qwen-companion-changes-show-turns] shows the turns")))
                 (proposed (or (qwen-companion-journal-proposed-text path turn)
                               (user-error "No proposal for %s is known in this turn"
                                           (qwen-companion-untrusted-path path))))
                 (step (qwen-companion-changes-undo-step group path))
                 (written (qwen-companion-disk-unix-text
                           (decode-coding-string (or (qwen-companion-undo-step-base step) "")
                                                 'utf-8))))
      (if (equal (qwen-companion-disk-unix-text proposed) written)
          (message "%s was written as proposed" (qwen-companion-untrusted-path path))
        (qwen-companion-compare-run
         (qwen-companion-disk-unix-text proposed) written
         '("proposed" "written")
         (lambda (output)
           (display-buffer (qwen-companion-compare-make-buffer path output))))))))

;;; The mode

(qwen-companion-header-define-keys qwen-companion-changes-mode "Changes"
  (next qwen-companion-changes-next nil)
  (previous qwen-companion-changes-previous nil)
  (fold qwen-companion-changes-toggle-fold "Fold or Unfold")
  ("m" qwen-companion-changes-merge "Merge from the Worktree" "merge"
   :if (qwen-companion-changes-items-difference-p))
  (end qwen-companion-changes-undo "Undo Hunk, Region, File or Turn" "undo"
   :if (not (qwen-companion-changes-items-difference-p)) :embark t)
  ("u" qwen-companion-changes-bring-back "Bring It Back" "bring back"
   :if (not (qwen-companion-changes-items-difference-p)) :embark t)
  ("s" qwen-companion-changes-mark-seen "Mark as Seen" "seen"
   :if (not (qwen-companion-changes-items-difference-p)) :embark t)
  ("c" qwen-companion-changes-comment "Comment on the Line" "comment" :embark t)
  ("C-c C-c" qwen-companion-changes-send-comments "Send the Comments"
   :if qwen-companion-changes-items-comments)
  (visit qwen-companion-changes-visit "Visit the Line" "file" :embark t)
  ("." qwen-companion-changes-describe "Describe the Hunk in Words" :embark t)
  "---"
  ("R" qwen-companion-rewind-turn "Rewind to Before the Turn")
  (nil (qwen-companion-rewind-turn 'files) "Rewind Only the Files")
  (nil (qwen-companion-rewind-turn 'conversation) "Rewind Only the Conversation")
  ("C-c C-u" qwen-companion-recover "Restore Edits That a CLI's Rewind Overwrote")
  ("F" qwen-companion-fork "Go On from the Turn in a Second Terminal")
  (nil (let ((current-prefix-arg '(4))) (call-interactively #'qwen-companion-fork))
       "Go On from the Turn in a Worktree")
  "---"
  ("e" qwen-companion-changes-ediff "Ediff with the Text Before" :embark t)
  ("=" qwen-companion-changes-compare-with-proposal "Compare with the Proposal")
  (copy qwen-companion-changes-copy-patch "Copy as Patch" :embark t)
  ("W" qwen-companion-changes-write-patch "Write a Patch...")
  ("C" qwen-companion-changes-commit "Commit...")
  ("+" qwen-companion-hunks-more-context nil)
  ("-" qwen-companion-hunks-less-context nil)
  "---"
  ("Show"
   ("v t" qwen-companion-changes-show-turns "Turns"
    :style radio :selected (eq 'turns qwen-companion-changes-items-scope))
   ("v f" qwen-companion-changes-show-since "From This Turn On"
    :style radio :selected (eq 'since (car-safe qwen-companion-changes-items-scope)))
   ("v s" qwen-companion-changes-show-session "This Session"
    :style radio :selected (eq 'session (car-safe qwen-companion-changes-items-scope)))
   ("v l" qwen-companion-changes-show-unseen "Since the Last Look"
    :style radio :selected (eq 'look qwen-companion-changes-items-scope))
   ("v c" qwen-companion-changes-show-since-commit "Since the Last Commit"
    :style radio :selected (eq 'commit qwen-companion-changes-items-scope))
   "---"
   ("v p" qwen-companion-changes-show-plan "The Plan of the Turn")
   "---"
   ("v a" qwen-companion-changes-toggle-seen "Seen Changes Too"
    :style toggle :selected qwen-companion-changes-items-all)
   ("v o" qwen-companion-changes-toggle-client "One CLI Only"
    :style toggle :selected qwen-companion-changes-items-client))
  (help qwen-companion-header-help nil)
  ([mouse-2] qwen-companion-changes-visit-clicked nil))

(defun qwen-companion-changes--header ()
  "Return the header line: the scope, the number of comments and the keys."
  (qwen-companion-header-line
   (qwen-companion-changes-items-scope-words)
   `((1 . ,(when qwen-companion-changes-items-root
             (concat "in " (qwen-companion-untrusted-line
                            (file-name-nondirectory qwen-companion-changes-items-root)))))
     (2 . ,(when qwen-companion-changes-items-client
             (qwen-companion-untrusted-line qwen-companion-changes-items-client)))
     (3 . ,(when qwen-companion-changes-items-all "including seen"))
     (0 . ,(when qwen-companion-changes-items-comments
             (format "%d comment%s: %s" (length qwen-companion-changes-items-comments)
                     (if (cdr qwen-companion-changes-items-comments) "s" "")
                     (qwen-companion-header-key 'qwen-companion-changes-send-comments
                                                "sends"))))
     ,@(qwen-companion-header-mode-keys))))

(define-derived-mode qwen-companion-changes-mode special-mode "Changes"
  "Major mode for the list of agents' changes.
Info node `(qwen-companion)Changes' is about it.

\\{qwen-companion-changes-mode-map}"
  :group 'qwen-companion
  :interactive nil
  (buffer-disable-undo)
  (qwen-companion-header-set-up-mode)
  (qwen-companion-completion-offer-targets #'qwen-companion-changes-items-targets)
  (setq-local bidi-paragraph-direction 'left-to-right
              truncate-lines t
              qwen-companion-rewind-target-function #'qwen-companion-rewind-target-at-point
              qwen-companion-hunks-view-note-function #'qwen-companion-changes-items-hunk-note
              qwen-companion-hunks-view-redraw-function #'qwen-companion-changes-items-update
              imenu-create-index-function #'qwen-companion-changes--index
              revert-buffer-function #'qwen-companion-changes--revert)
  (setq qwen-companion-changes-items-views (make-hash-table :test #'equal)
        qwen-companion-changes-items-headings (make-hash-table :test #'equal)
        qwen-companion-changes-items-auto-unfold t
        qwen-companion-changes-items-arrows (char-displayable-p ?▸)
        header-line-format '((:eval (qwen-companion-changes--header))))
  (qwen-companion-changes-items-note-seen)
  (add-hook 'qwen-companion-changes-items-drawn-hook #'qwen-companion-changes-comments-show nil t)
  (jit-lock-register #'qwen-companion-hunks-view-fontify)
  (qwen-companion-timers-keep-updated #'qwen-companion-changes-items-update)
  (add-hook 'kill-buffer-hook #'qwen-companion-changes--clean-up nil t))

(defun qwen-companion-changes--index ()
  "Return each turn and file for Imenu."
  (cl-loop for (key start . _) in (qwen-companion-items-bounds)
           when (memq (car key) '(group file))
           collect (save-excursion
                     (goto-char start)
                     (cons (string-trim (buffer-substring-no-properties
                                         (point) (line-end-position)))
                           (point-marker)))))

(defun qwen-companion-changes--clean-up ()
  "Stop updating: the buffer is being killed."
  (when (eq (current-buffer) (qwen-companion-changes-items-buffer))
    (qwen-companion-journal-watch 'changes nil))
  (qwen-companion-changes-items-forget-views))

(defun qwen-companion-changes-close ()
  "Kill the buffer of this mode if there is one."
  (when-let* ((buffer (qwen-companion-changes-items-buffer)))
    (quit-windows-on buffer)
    (kill-buffer buffer)))

;;; For other files

(defun qwen-companion-changes-call-at (turn path line function)
  "Call FUNCTION in a hidden buffer of this mode with point on a hunk.
The hunk is the change that TURN, an id, made at LINE of the file PATH;
LINE counts in the current text.  Signal a `user-error' if there is
none.  The buffer is killed afterwards."
  (let ((buffer (generate-new-buffer " *qwen-companion change*")))
    (unwind-protect
        (with-current-buffer buffer
          (qwen-companion-changes-mode)
          (setq qwen-companion-changes-items-all t
                qwen-companion-changes-items-auto-unfold nil
                qwen-companion-items-toggled
                (list (list 'group turn) (list 'file turn path)))
          (let* ((view (qwen-companion-changes-items-await-view
                        (or (qwen-companion-changes-items-group-of turn)
                            (user-error "This turn is no longer in the journal"))
                        path))
                 (change (and (eq 'ready (qwen-companion-changes-file-state view))
                              (qwen-companion-changes-file-change-at view line))))
            (push (list 'file turn path) qwen-companion-changes-items-whole)
            (qwen-companion-changes-items-update)
            (unless (and change (qwen-companion-hunks-view-goto-change change))
              (user-error "No agent has changed this line"))
            (funcall function)))
      (when (buffer-live-p buffer)
        (kill-buffer buffer)))))

(defun qwen-companion-changes--call-in-file (function)
  "Call FUNCTION on the agent's hunk at point in a file.
Point is on the hunk in a hidden buffer of this mode then."
  (qwen-companion-changes-call-at
   (qwen-companion-changes-here-turn)
   (qwen-companion-changes-signs-path (current-buffer))
   (line-number-at-pos nil t)
   function))

(setq qwen-companion-changes-items-file-function #'qwen-companion-changes--call-in-file)

(defun qwen-companion-changes--comment-in-file ()
  "Note a comment on the line at point in a file, to be sent with the others."
  (let* ((turn (qwen-companion-journal-turn (qwen-companion-changes-here-turn)))
         (path (qwen-companion-changes-signs-path (current-buffer)))
         (line (line-number-at-pos nil t))
         (text (concat " " (buffer-substring-no-properties (line-beginning-position)
                                                           (line-end-position))))
         (comment (qwen-companion-changes-comments-read path line)))
    (unless (string-empty-p comment)
      (with-current-buffer (qwen-companion-changes--open)
        (qwen-companion-changes-comments-add
         (qwen-companion-changes-comments-make-comment
          :path path :root (qwen-companion-turn-root turn)
          :source (cons 'file (cons line line))
          :line text :text comment)))
      (message "%s"
               (qwen-companion-header-text
                "Noted; \\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-send-comments] in \\[qwen-companion-changes] sends it")))))

;;;###autoload
(defun qwen-companion-changes-comment ()
  "Note a comment on the line at point; with an empty one, remove it.
\\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-send-comments] in \\[qwen-companion-changes] sends all comments to the CLI."
  (interactive)
  (if (derived-mode-p 'qwen-companion-changes-mode)
      (qwen-companion-changes-comments-comment)
    (qwen-companion-changes--comment-in-file)))

;;;###autoload (autoload 'qwen-companion-changes-command-map "qwen-companion-changes" nil nil 'keymap)
(defvar qwen-companion-changes-command-map
  (qwen-companion-buffers-keymap
   "n" #'qwen-companion-changes-next
   "p" #'qwen-companion-changes-previous
   "k" #'qwen-companion-changes-undo
   "u" #'qwen-companion-changes-bring-back
   "s" #'qwen-companion-changes-mark-seen
   "e" #'qwen-companion-changes-ediff
   "c" #'qwen-companion-changes-comment
   "w" #'qwen-companion-changes-copy-patch
   "=" #'qwen-companion-changes-compare-with-proposal)
  "Keymap of commands on agents' changes in the file itself.
Bind it to a key of your own.  With `repeat-mode' on, its keys work by
themselves after one of its commands.")
(fset 'qwen-companion-changes-command-map qwen-companion-changes-command-map)
(map-keymap (lambda (_ command) (put command 'repeat-map 'qwen-companion-changes-command-map))
            qwen-companion-changes-command-map)

;;; Opening

(defun qwen-companion-changes--open ()
  "Return the buffer of this mode, made if need be."
  (or (qwen-companion-changes-items-buffer)
      (with-current-buffer (get-buffer-create qwen-companion-changes-items-buffer-name)
        (qwen-companion-changes-mode)
        (qwen-companion-buffers-add-hooks
         '((qwen-companion-journal-changed-functions . qwen-companion-changes--changed)
           (qwen-companion-state-functions . qwen-companion-changes--state-changed)))
        (qwen-companion-journal-watch 'changes t)
        (current-buffer))))

;;;###autoload
(defun qwen-companion-changes ()
  "Show each change by CLIs, turn by turn, the newest turn first.
Include edits and shell commands, in every approval mode.
\\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-toggle-fold] unfolds a turn or a file, \\[qwen-companion-changes-undo] undoes the
hunk, file or turn at point, and \\[qwen-companion-changes-bring-back] brings it back.  Changes
marked as seen (\\[qwen-companion-changes-mark-seen]) are hidden the next time."
  (interactive)
  (when (eq (qwen-companion-state) 'off)
    (user-error "The companion is off and has no journal; turn it on with M-x qwen-companion-mode"))
  (let ((buffer (qwen-companion-changes--open)))
    (with-current-buffer buffer
      (setq qwen-companion-changes-items-root nil)
      (qwen-companion-changes-items-note-seen))
    (pop-to-buffer buffer)
    (qwen-companion-changes-items-update)))

;;;###autoload
(defun qwen-companion-changes-show-turn (id path)
  "Show the turn ID unfolded, with point on its part in PATH."
  (qwen-companion-changes)
  (qwen-companion-backend-wait (lambda () (qwen-companion-journal-turn id)) 2)
  (unless (qwen-companion-journal-turn id)
    (user-error "This turn is no longer in the journal"))
  (setq qwen-companion-changes-items-all t
        qwen-companion-changes-items-client nil)
  (let ((keys (list (list 'file id path) (list 'group id))))
    (dolist (key keys)
      (cl-pushnew key qwen-companion-items-toggled :test #'equal))
    (qwen-companion-changes--show 'turns)
    ;; The file may have had another name then.
    (goto-char (cl-some #'qwen-companion-items-start keys))
    (recenter 0)))

(defun qwen-companion-changes-of-root (root scope)
  "Show SCOPE, as `qwen-companion-changes-items-scope', of ROOT only."
  (qwen-companion-changes)
  (qwen-companion-changes--show scope root))

(defun qwen-companion-changes-of-session (turn)
  "Show each change in the conversation of TURN."
  (qwen-companion-changes)
  (qwen-companion-changes--show (list 'session (qwen-companion-turn-session turn))))

(provide 'qwen-companion-changes)
;;; qwen-companion-changes.el ends here
