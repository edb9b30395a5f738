;;; qwen-companion-changes-merge.el --- Merge changes in a worktree into the main tree  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Merge an agent's changes in a git worktree into the main tree: a region of
;; lines, a hunk, a file, a turn or all.  The base is the text before the
;; agent's change, "mine" the file or buffer in the main tree.  The merge is a
;; turn of the main tree's journal and can be undone.  It is no git merge:
;; nothing is committed, and branches do not change.

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
  '("merged" . "The main tree already has this")
  "The words for a report, as in `qwen-companion-changes-undo-report'.")

(defconst qwen-companion-changes-merge--limit 60
  "Seconds that a command waits until git has made a worktree; it can be quit.")

(defun qwen-companion-changes-merge ()
  "Merge what is at point in a worktree into the main tree of its repository.
That is the region's lines, the hunk, the file or the turn, without undone
changes.  Edits in the main tree stay, unsaved ones too, and the merge can
be undone there.  Nothing is committed; use git to merge the branch."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes-undo-call-on-views #'qwen-companion-changes-merge--run))

(defun qwen-companion-changes-merge--run (group views &optional changes)
  "Merge each change shown by VIEWS, of files in GROUP, into the main tree.
With CHANGES, merge only these, of the only view."
  (let* ((tree (qwen-companion-changes-items-group-root group))
         (name (file-name-nondirectory tree))
         (title (unless (memq (plist-get (qwen-companion-changes-items-group-part group) :scope)
                              '(merge begun tree))
                  (qwen-companion-changes-undo-title group)))
         ;; For a removed worktree, only the texts of the turn are left.
         (removed (not (or (file-remote-p tree) (file-directory-p tree))))
         (main (funcall (if removed #'qwen-companion-changes-merge--choose #'identity)
                        (qwen-companion-changes-merge--main tree)))
         (steps (delq nil (mapcar (lambda (view)
                                    (qwen-companion-changes-merge--step
                                     view main
                                     (or (and removed t) changes
                                         (qwen-companion-changes-merge--changes view))))
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
                             (seq-filter #'qwen-companion-changes-merge--changes views)))
                   'merge))))
    (qwen-companion-changes-undo-report
     (qwen-companion-undo-apply-steps
      (qwen-companion-changes-merge--in-order steps)
      (qwen-companion-changes-undo-turn-of
       group (mapcar #'qwen-companion-changes-file-path views))
      (concat "From " name (and title (concat ": " title)))
      'merge)
     (length steps) qwen-companion-changes-merge--words)))

(defun qwen-companion-changes-merge-root (tree)
  "Merge all differences of the worktree TREE into the main tree.
Include committed changes and those of any author."
  (let* ((main (qwen-companion-changes-merge--main tree))
         (part (list :root tree :scope 'merge :turn nil :session nil))
         (files (qwen-companion-journal-reply-files
                 (qwen-companion-journal-await 'journal-files part)))
         (turn (cl-find tree (qwen-companion-journal-turns)
                        :key #'qwen-companion-turn-root :test #'equal))
         (name (file-name-nondirectory tree)))
    (unless files
      (user-error "The main tree already has all of %s"
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
  "Return the tree for the files of a removed worktree.
It is the tree MAIN or a new worktree, made by git."
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
              (user-error "Git did not make the worktree; see the buffer *Messages*"))))
    (_ (keyboard-quit))))

(defun qwen-companion-changes-merge--counterpart (path tree main)
  "Return the file of the tree MAIN that corresponds to PATH of TREE; nil for nil."
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

(defun qwen-companion-changes-merge--changes (view)
  "Return each change of VIEW that is not undone; t if it has no text."
  (or (not (eq 'ready (qwen-companion-changes-file-state view)))
      (null (qwen-companion-changes-file-changes view))
      (cl-remove-if #'qwen-companion-hunks-change-text
                    (qwen-companion-changes-file-changes view))))

(defun qwen-companion-changes-merge--step (view main list)
  "Return the step that merges each change in LIST, of VIEW, into the tree MAIN.
LIST is t for a whole binary file.  Return nil if no change is left in the
worktree."
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
  "Return LIST in order, in the form for `qwen-companion-undo-apply-steps'.
Deletions come first and new files last, so that names are free."
  (mapcar (lambda (step) (cons (qwen-companion-undo-step-path step) step))
          (seq-sort-by (lambda (step)
                         (cond ((null (qwen-companion-undo-step-target step)) 0)
                               ((qwen-companion-undo-step-from step) 1)
                               ((qwen-companion-undo-step-base step) 2)
                               (t 3)))
                       #'< list)))

(provide 'qwen-companion-changes-merge)
;;; qwen-companion-changes-merge.el ends here
