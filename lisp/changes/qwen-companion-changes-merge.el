;;; qwen-companion-changes-merge.el --- Merge changes in a worktree into the main tree  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What an agent changed in a git worktree is merged into the main tree: a
;; region of lines, a hunk, a file, a turn or all of it.  The base is the text
;; before the agent's change, "mine" the file or buffer in the main tree.  It
;; is a turn of the journal there, which can be undone, and no git merge:
;; nothing is committed, and branches stay as they are.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'qwen-companion-backend)
(require 'qwen-companion-changes-file)
(require 'qwen-companion-changes-items)
(require 'qwen-companion-changes-undo)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-header)
(require 'qwen-companion-hunks)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-terminal)
(require 'qwen-companion-undo)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-changes-merge--words
  '("merged" . "The main tree has this already")
  "The words for a report, as in `qwen-companion-changes-undo-report'.")

(defconst qwen-companion-changes-merge--limit 60
  "Seconds that a command waits until git has made a worktree; it can be quit.")

(defun qwen-companion-changes-merge ()
  "Merge what is at point in a worktree into the main tree of its repository.
That is the region's lines, the hunk, the file or the turn, without what is
undone.  Edits in the main tree stay, also unsaved ones, and it can be
undone there.  Nothing is committed; to merge the branch use git."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes-undo-call-on-views #'qwen-companion-changes-merge--run))

(defun qwen-companion-changes-merge--run (group views &optional changes)
  "Merge what VIEWS, of files in GROUP, show into the main tree.
With CHANGES, only these are wanted, of the only view."
  (let* ((tree (qwen-companion-changes-items-group-root group))
         (name (file-name-nondirectory tree))
         (title (unless (memq (plist-get (qwen-companion-changes-items-group-part group) :scope)
                              '(merge begun tree))
                  (qwen-companion-changes-undo-title group)))
         ;; Of a worktree that is removed there are the texts of the turn.
         (removed (not (or (file-remote-p tree) (file-directory-p tree))))
         (main (funcall (if removed #'qwen-companion-changes-merge--choose #'identity)
                        (qwen-companion-changes-merge--main tree)))
         (steps (delq nil (mapcar (lambda (view)
                                    (qwen-companion-changes-merge--step
                                     view main
                                     (or (and removed t) changes
                                         (qwen-companion-changes-merge--kept view))))
                                  views)))
         (paths (mapcar #'qwen-companion-undo-step-path steps)))
    (unless steps
      (qwen-companion-header-error
       "This is undone in the worktree; \\[qwen-companion-changes-bring-back] brings it back there"))
    (qwen-companion-undo-confirm
     paths "merge"
     (and (or removed (cdr steps))
          (format "Merge %s into %s: %s"
                  (or title (qwen-companion-untrusted-text name))
                  (qwen-companion-untrusted-text (abbreviate-file-name main))
                  (qwen-companion-changes-undo-words
                   (mapcar (lambda (view)
                             (qwen-companion-changes-items-shown-file
                              group (qwen-companion-changes-file-path view)))
                           (if removed
                               views
                             (seq-filter #'qwen-companion-changes-merge--kept views)))
                   'merge))))
    (qwen-companion-changes-undo-report
     (qwen-companion-undo-run
      (qwen-companion-changes-merge--in-order steps)
      (qwen-companion-changes-undo-turn-of
       group (mapcar #'qwen-companion-changes-file-path views))
      (concat "From " name (and title (concat ": " title)))
      'merge)
     (length steps) qwen-companion-changes-merge--words)))

(defun qwen-companion-changes-merge-root (tree)
  "Merge all that differs in the worktree TREE into the main tree.
Whoever has changed it, committed or not."
  (let* ((main (qwen-companion-changes-merge--main tree))
         (part (list :root tree :scope 'merge :turn nil :session nil))
         (files (qwen-companion-journal-reply-files
                 (qwen-companion-journal-await 'journal-files part)))
         (turn (cl-find tree (qwen-companion-journal-turns)
                        :key #'qwen-companion-turn-root :test #'equal))
         (name (file-name-nondirectory tree)))
    (unless files
      (user-error "The main tree has all of %s already"
                  (qwen-companion-untrusted-text name)))
    (qwen-companion-undo-confirm
     (mapcar (lambda (file)
               (qwen-companion-changes-merge--counterpart
                (qwen-companion-changed-file-path file) tree main))
             files)
     "merge"
     (format "Merge %s into %s (%s), as text; git merges its commits"
             (qwen-companion-untrusted-text name)
             (qwen-companion-untrusted-text (abbreviate-file-name main))
             (qwen-companion-changes-undo-words files 'merge)))
    (qwen-companion-changes-undo-report
     (qwen-companion-undo-files
      part files (qwen-companion-turn-id turn) (format "From %s" name) 'merge
      (apply-partially #'qwen-companion-changes-merge--in-main tree main))
     (length files) qwen-companion-changes-merge--words)))

(defun qwen-companion-changes-merge--main (tree)
  "Return the main tree of the worktree TREE, ready to be merged into."
  (qwen-companion-journal-reply-root
   (qwen-companion-journal-await 'journal-merge (list :root tree) 60)))

(defun qwen-companion-changes-merge--choose (main)
  "Return the tree into which to bring files of a worktree that is removed.
It is the tree MAIN or a new worktree, which git makes."
  (pcase (read-char-choice
          (format "The worktree is removed.  Bring its files into [m] %s, [w] a new worktree, [q] quit: "
                  (qwen-companion-untrusted-text (abbreviate-file-name main)))
          '(?m ?w ?q))
    (?m main)
    (?w (let ((made nil))
          (qwen-companion-terminal-in-worktrees
           main (list (read-string "Name of the new worktree: "))
           (lambda (path) (setq made path)))
          (message "Making the worktree (C-g stops waiting)...")
          (or (qwen-companion-backend-wait (lambda () made)
                                           qwen-companion-changes-merge--limit)
              (user-error "Git has not made the worktree; see the buffer *Messages*"))))
    (_ (keyboard-quit))))

(defun qwen-companion-changes-merge--counterpart (path tree main)
  "Return the file of the tree MAIN that PATH of TREE stands for; nil for nil."
  (and path (expand-file-name (file-relative-name path tree) main)))

(defun qwen-companion-changes-merge--in-main (tree main step)
  "Return STEP, for a file of TREE, as one for that file of the tree MAIN."
  (setf (qwen-companion-undo-step-root step) main
        (qwen-companion-undo-step-labels step) qwen-companion-conflicts-worktree-labels
        (qwen-companion-undo-step-path step)
        (qwen-companion-changes-merge--counterpart
         (qwen-companion-undo-step-path step) tree main)
        (qwen-companion-undo-step-from step)
        (qwen-companion-changes-merge--counterpart
         (qwen-companion-undo-step-from step) tree main))
  step)

(defun qwen-companion-changes-merge--kept (view)
  "Return each change of VIEW that is not undone; t if it has no text."
  (or (not (eq 'ready (qwen-companion-changes-file-state view)))
      (null (qwen-companion-changes-file-changes view))
      (cl-remove-if #'qwen-companion-hunks-change-text
                    (qwen-companion-changes-file-changes view))))

(defun qwen-companion-changes-merge--step (view main list)
  "Return the step that merges each change in LIST, of VIEW, into the tree MAIN.
LIST is t for all of a file without a text.  Return nil if none of them is
left in the worktree."
  (let* ((changes (if (listp list)
                      (cl-remove-if #'qwen-companion-hunks-change-text list)
                    list))
         (before-mode (qwen-companion-changes-file-before-mode view))
         (after-mode (qwen-companion-changes-file-after-mode view))
         (target (if (listp changes)
                     (qwen-companion-changes-file-bytes
                      view (lambda (change) (not (memq change changes))))
                   (qwen-companion-changes-file-after view))))
    (when changes
      (qwen-companion-changes-merge--in-main
       (plist-get (qwen-companion-changes-file-part view) :root) main
       (make-qwen-companion-undo-step
        :path (qwen-companion-changes-file-path view)
        :from (qwen-companion-changes-file-from view)
        :base (qwen-companion-changes-file-before view)
        :target target
        :base-mode before-mode
        :target-mode (and target (or after-mode before-mode))
        :binary (eq 'binary (qwen-companion-changes-file-state view)))))))

(defun qwen-companion-changes-merge--in-order (list)
  "Return LIST in order, in the form for `qwen-companion-undo-run'.
What is deleted comes first and what is new last, so that names are free."
  (mapcar (lambda (step) (cons (qwen-companion-undo-step-path step) step))
          (seq-sort-by (lambda (step)
                         (cond ((null (qwen-companion-undo-step-target step)) 0)
                               ((qwen-companion-undo-step-from step) 1)
                               ((qwen-companion-undo-step-base step) 2)
                               (t 3)))
                       #'< list)))

(provide 'qwen-companion-changes-merge)
;;; qwen-companion-changes-merge.el ends here
