;;; qwen-companion-worktrees.el --- The worktrees of a project beside each other  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A table of a project's git worktrees: the CLIs in them, their changes, and
;; the conflicts of a merge into the main tree.  The names are shown at once;
;; the data from git follow, one worktree after the other.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-ask)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-changes)
(require 'qwen-companion-changes-merge)
(require 'qwen-companion-header)
(require 'qwen-companion-journal)
(require 'qwen-companion-list)
(require 'qwen-companion-messages)
(require 'qwen-companion-programs)
(require 'qwen-companion-roots)
(require 'qwen-companion-session-list)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-worktrees--period 5
  "Seconds between two updates of the states and names in a visible list.")

(defvar-local qwen-companion-worktrees--root nil
  "The directory whose repository is shown.")
(defvar-local qwen-companion-worktrees--trees nil
  "The worktrees with their data, the main one first.")
(defvar-local qwen-companion-worktrees--problems nil
  "Alist from paths of worktrees to errors of git; nil stands for the list.")
(defvar-local qwen-companion-worktrees--queue nil
  "Paths of the worktrees to request; the first is being requested.")
(defvar-local qwen-companion-worktrees--outdated nil
  "Non-nil after a change while the list was in no window.")
(defvar-local qwen-companion-worktrees--request-time 0
  "Time of the last request for the names, in seconds since the epoch.")

;;; Data

(defun qwen-companion-worktrees--load (&optional all)
  "Request the worktrees and their missing data; return at once.
With ALL non-nil, request known data again, as it may be outdated."
  (setq qwen-companion-worktrees--request-time (float-time))
  (let ((buffer (current-buffer)))
    (qwen-companion-journal-ask
     'journal-worktrees (list :root qwen-companion-worktrees--root :tree nil)
     (lambda (reply)
       (qwen-companion-buffers-when-live buffer
         (let ((trees (qwen-companion-journal-reply-worktrees reply))
               (known (and (not all) (mapcar #'qwen-companion-worktree-path
                                             qwen-companion-worktrees--trees))))
           (setf (alist-get nil qwen-companion-worktrees--problems)
                 (qwen-companion-journal-error reply))
           (setq qwen-companion-worktrees--trees
                 ;; Keep old data until newer data arrive.
                 (mapcar (lambda (tree)
                           (or (and (not (qwen-companion-worktree-gone tree))
                                    (qwen-companion-worktrees--tree
                                     (qwen-companion-worktree-path tree)))
                               tree))
                         trees))
           (qwen-companion-worktrees--examine
            (seq-difference (mapcar #'qwen-companion-worktree-path
                                    (seq-remove #'qwen-companion-worktree-gone trees))
                            known)))
         (qwen-companion-timers-update-soon 0))))))

(defun qwen-companion-worktrees--tree (path)
  "Return the known worktree PATH, or nil."
  (cl-find path qwen-companion-worktrees--trees
           :key #'qwen-companion-worktree-path :test #'equal))

(defun qwen-companion-worktrees--examine (paths)
  "Request the data of the worktrees PATHS, one after the other."
  (let ((idle (null qwen-companion-worktrees--queue)))
    (setq qwen-companion-worktrees--queue
          (append qwen-companion-worktrees--queue
                  (seq-difference paths (cdr qwen-companion-worktrees--queue))))
    (when (and idle qwen-companion-worktrees--queue)
      (qwen-companion-worktrees--ask-for-next))))

(defun qwen-companion-worktrees--ask-for-next ()
  "Request the data of the first worktree in the queue."
  (let ((buffer (current-buffer))
        (path (car qwen-companion-worktrees--queue)))
    (qwen-companion-journal-ask
     'journal-worktrees (list :root qwen-companion-worktrees--root :tree path)
     (lambda (reply)
       (qwen-companion-buffers-when-live buffer
         (qwen-companion-worktrees--store path reply)
         (pop qwen-companion-worktrees--queue)
         (when qwen-companion-worktrees--queue
           (qwen-companion-worktrees--ask-for-next))
         (qwen-companion-timers-update-soon 0.1))))))

(defun qwen-companion-worktrees--store (path reply)
  "Store REPLY as the data of the worktree PATH."
  (setf (alist-get path qwen-companion-worktrees--problems nil t #'equal)
        (qwen-companion-journal-error reply))
  (when-let* ((tree (car (qwen-companion-journal-reply-worktrees reply))))
    (setq qwen-companion-worktrees--trees
          (mapcar (lambda (old)
                    (if (equal path (qwen-companion-worktree-path old)) tree old))
                  qwen-companion-worktrees--trees))))

(defun qwen-companion-worktrees--true-name (path)
  "Return the true name of PATH, with a slash; do not resolve a remote PATH."
  (qwen-companion-list-once
   (cons 'name path)
   (lambda ()
     (file-name-as-directory (if (file-remote-p path) path (file-truename path))))))

(defun qwen-companion-worktrees--around (path)
  "Return the path of the innermost worktree that PATH is in, or nil."
  (qwen-companion-list-once
   (cons 'around path)
   (lambda ()
     (car (sort (seq-filter (lambda (tree)
                              (string-prefix-p (qwen-companion-worktrees--true-name tree)
                                               (qwen-companion-worktrees--true-name path)))
                            (mapcar #'qwen-companion-worktree-path
                                    (seq-remove #'qwen-companion-worktree-gone
                                                qwen-companion-worktrees--trees)))
                (lambda (a b) (> (length a) (length b))))))))

(defun qwen-companion-worktrees--newest-turns ()
  "Return the newest turn of an agent in each root: an alist (ROOT . TURN).
Leave out turns of one of several agents, which have no session."
  (qwen-companion-list-once
   'turns
   (lambda ()
     (let ((seen (make-hash-table :test #'equal)))
       (cl-loop for turn in (qwen-companion-journal-turns)
                for root = (qwen-companion-turn-root turn)
                when (and (eq 'agent (qwen-companion-turn-who turn))
                          (not (eq 'merge (qwen-companion-turn-source turn)))
                          (not (equal "" (qwen-companion-turn-session turn)))
                          (not (gethash root seen)))
                do (puthash root t seen)
                and collect (cons (qwen-companion-worktrees--true-name root) turn))))))

(defun qwen-companion-worktrees--newest-turn (tree)
  "Return the newest turn of an agent in the worktree TREE, or nil."
  (cdr (assoc (qwen-companion-worktrees--true-name (qwen-companion-worktree-path tree))
              (qwen-companion-worktrees--newest-turns))))

(defun qwen-companion-worktrees--root-of (tree)
  "Return the worktree TREE as the journal names it."
  (if-let* ((turn (qwen-companion-worktrees--newest-turn tree)))
      (qwen-companion-turn-root turn)
    (qwen-companion-worktree-path tree)))

(defun qwen-companion-worktrees--residents (tree)
  "Return the connected CLIs whose directory is in the worktree TREE."
  (cdr (assoc (qwen-companion-worktree-path tree)
              (qwen-companion-list-once
               'residents
               (lambda ()
                 (seq-group-by (lambda (session)
                                 (when-let* ((directory (qwen-companion-session-directory session)))
                                   (qwen-companion-worktrees--around directory)))
                               (qwen-companion-backend-sessions)))))))

(defun qwen-companion-worktrees--sessions (tree)
  "Return the connected CLIs that work in the worktree TREE.
A CLI that has entered it by a tool has its newest turn there."
  (let ((newest (qwen-companion-turn-cli (qwen-companion-worktrees--newest-turn tree))))
    (seq-union (seq-filter (lambda (session)
                             (equal newest (qwen-companion-session-id session)))
                           (qwen-companion-backend-sessions))
               (qwen-companion-worktrees--residents tree))))

;;; What a row says

(defun qwen-companion-worktrees--entry (tree)
  "Return the entry of the worktree TREE in the list."
  (let* ((path (qwen-companion-worktree-path tree))
         (sessions (qwen-companion-worktrees--sessions tree))
         (session (car sessions))
         (known (qwen-companion-worktree-files tree))
         (tokens (qwen-companion-cli-state-tokens (qwen-companion-session-state session)))
         (remark (or (cdr (assoc path qwen-companion-worktrees--problems))
                     (qwen-companion-worktrees--unusual-state tree)
                     (qwen-companion-turn-prompt
                      (qwen-companion-worktrees--newest-turn tree))))
         (cells (list
                 (qwen-companion-untrusted-text (file-name-nondirectory path))
                 (pcase (qwen-companion-worktree-branch tree)
                   ('nil "(no branch)") ("" "(bare)")
                   (branch (qwen-companion-untrusted-text branch)))
                 (and session
                      (concat (qwen-companion-untrusted-text
                               (qwen-companion-session-client session))
                              (and (cdr sessions) (format " +%d" (length (cdr sessions))))))
                 (and session
                      (symbol-name (qwen-companion-session-list-activity session)))
                 (and known (number-to-string known))
                 (and (qwen-companion-worktree-base tree)
                      (format "+%d -%d" (qwen-companion-worktree-ahead tree)
                              (qwen-companion-worktree-behind tree)))
                 (when-let* ((files (qwen-companion-worktree-conflicts tree)))
                   (propertize (number-to-string (length files)) 'face 'warning
                               'help-echo (mapconcat #'qwen-companion-untrusted-text
                                                     files "\n")))
                 (and tokens (number-to-string tokens))
                 (and remark (qwen-companion-untrusted-line remark)))))
    (list path (vconcat (mapcar (lambda (cell) (or cell "")) cells)))))

(defun qwen-companion-worktrees--unusual-state (tree)
  "Return a text for an unusual state of TREE, or nil."
  (cond ((qwen-companion-worktree-gone tree)
         (concat "its directory is missing"
                 (and (qwen-companion-worktree-locked tree) "; locked")))
        ((qwen-companion-worktree-locked tree)
         (format "locked: %s" (qwen-companion-worktree-locked tree)))))

;;; The list

(defun qwen-companion-worktrees--load-outdated (by-user)
  "Request the worktrees if they may be outdated, or BY-USER is non-nil."
  (when (or by-user
            (and (qwen-companion-timers-visible-window)
                 (or qwen-companion-worktrees--outdated
                     (< (+ qwen-companion-worktrees--request-time
                           qwen-companion-worktrees--period)
                        (float-time)))))
    (qwen-companion-worktrees--load
     (or (cl-shiftf qwen-companion-worktrees--outdated nil) by-user))))

(defun qwen-companion-worktrees--changed (paths)
  "Refresh the worktrees in which PATHS were changed.
A change in the main tree may change the conflicts of others.  If the list
is in no window, refresh all when it is shown again."
  (qwen-companion-list-with-buffer 'qwen-companion-worktrees-mode
    (if (not (qwen-companion-timers-visible-window))
        (setq qwen-companion-worktrees--outdated t)
      (let ((trees (delq nil (mapcar #'qwen-companion-worktrees--around
                                     (and (listp paths) paths))))
            (main (car qwen-companion-worktrees--trees)))
        (qwen-companion-worktrees--examine
         (if (member (qwen-companion-worktree-path main) trees)
             (mapcar #'qwen-companion-worktree-path
                     (seq-remove (lambda (tree)
                                   (or (qwen-companion-worktree-gone tree)
                                       (eql 0 (qwen-companion-worktree-files tree))))
                                 qwen-companion-worktrees--trees))
           (delete-dups trees))))
      (qwen-companion-timers-update-soon 0.2))))

(defun qwen-companion-worktrees--saved ()
  "Refresh the worktree of the file that the user has saved."
  (unless (file-remote-p buffer-file-name)
    (qwen-companion-worktrees--changed (list buffer-file-name))))

(defun qwen-companion-worktrees--main-p (tree)
  "Return non-nil when TREE is the main one of its repository."
  (eq tree (car qwen-companion-worktrees--trees)))

(defun qwen-companion-worktrees-changes (tree)
  "Show what agents have changed in TREE, the worktree at point."
  (interactive (list (qwen-companion-list-at-point)) qwen-companion-worktrees-mode)
  (unless (qwen-companion-worktrees--newest-turn tree)
    (qwen-companion-header-error
     "No recorded agent changes; \\[qwen-companion-worktrees-diff] shows the diff"))
  (qwen-companion-changes-of-root (qwen-companion-worktrees--root-of tree) 'turns))

(defun qwen-companion-worktrees-terminal (tree)
  "Go to the terminal of the CLI that works in TREE, the worktree at point."
  (interactive (list (qwen-companion-list-at-point)) qwen-companion-worktrees-mode)
  (if-let* ((session (car (qwen-companion-worktrees--sessions tree))))
      (qwen-companion-session-list-visit session)
    (qwen-companion-header-error "No CLI works there; \\[qwen-companion-worktrees-ask] writes a prompt for a new one")))

(declare-function qwen-companion-start-cli "qwen-companion"
                  (directory arguments another interactive))

(defun qwen-companion-worktrees-ask (tree)
  "Write a prompt for the CLI in TREE, the worktree at point.
Start one there if there is none."
  (interactive (list (qwen-companion-list-at-point)) qwen-companion-worktrees-mode)
  (let ((path (qwen-companion-worktree-path tree)))
    (when (qwen-companion-worktree-gone tree)
      (user-error "The directory of this worktree no longer exists"))
    (if (qwen-companion-worktrees--sessions tree)
        (let ((default-directory (file-name-as-directory path)))
          (call-interactively #'qwen-companion-ask))
      (qwen-companion-start-cli path nil nil t))))

(defun qwen-companion-worktrees-merge (tree)
  "Merge all of TREE, the worktree at point, into the main tree.
Merge the differences that \\<qwen-companion-worktrees-mode-map>\\[qwen-companion-worktrees-diff] shows, as text; that can be undone.
Use git to merge the commits of its branch."
  (interactive (list (qwen-companion-list-at-point)) qwen-companion-worktrees-mode)
  (qwen-companion-changes-merge-root (qwen-companion-worktrees--root-of tree)))

(declare-function magit-merge-plain "ext:magit-merge" (rev &optional args nocommit))

(defun qwen-companion-worktrees-merge-branch (tree)
  "Merge the branch of TREE, the worktree at point, with git.
This merges its commits, but no uncommitted changes;
\\<qwen-companion-worktrees-mode-map>\\[qwen-companion-worktrees-merge] merges those as text.  Use Magit if it is loaded, else a
shell command that you can edit."
  (interactive (list (qwen-companion-list-at-point)) qwen-companion-worktrees-mode)
  (let ((branch (qwen-companion-worktree-branch tree))
        (main (car qwen-companion-worktrees--trees)))
    (cond
     ((qwen-companion-worktrees--main-p tree)
      (user-error "This is the main tree, into which the others are merged"))
     ((member branch '(nil ""))
      (qwen-companion-header-error "It has no branch; \\[qwen-companion-worktrees-merge] merges its changes as text"))
     ((equal "" (qwen-companion-worktree-head tree))
      (qwen-companion-header-error
       "Its branch has no commit, or is gone; \\[qwen-companion-worktrees-merge] merges its changes as text"))
     ((equal "" (qwen-companion-worktree-branch main))
      (user-error "The repository is bare: there is no main tree to merge into"))
     ((and (qwen-companion-worktree-base tree) (= 0 (qwen-companion-worktree-ahead tree)))
      (qwen-companion-header-error
       "No new commits on its branch; \\[qwen-companion-worktrees-merge] merges uncommitted changes")))
    (let ((default-directory (file-name-as-directory (qwen-companion-worktree-path main)))
          (lost (qwen-companion-worktree-uncommitted tree)))
      (unless (and (> lost 0)
                   (not (y-or-n-p (format "Merge without %d uncommitted file%s? "
                                          lost (if (= lost 1) "" "s")))))
        (if (featurep 'magit)
            (magit-merge-plain branch)
          (qwen-companion-programs-run-in-shell
           (format "In %s: " (abbreviate-file-name default-directory))
           (concat "git merge " (shell-quote-argument branch))))))))

(defun qwen-companion-worktrees-diff (tree &optional scope)
  "Show the whole difference of TREE, the worktree at point, to the main tree.
Show the changes that a merge would make there, committed or not.  Leave
out changes of the main tree.  m merges a hunk or a file.  With a prefix
argument, ask for something else to compare with: another worktree, or the
start of this one.  SCOPE is as `qwen-companion-changes-items-scope'."
  (interactive (let ((tree (qwen-companion-list-at-point)))
                 (list tree (and current-prefix-arg (qwen-companion-worktrees--read-scope tree))))
               qwen-companion-worktrees-mode)
  (when (and (not scope) (qwen-companion-worktrees--main-p tree))
    (qwen-companion-header-error "This is the main tree; C-u \\[qwen-companion-worktrees-diff] compares it with a worktree"))
  (qwen-companion-changes-of-root (qwen-companion-worktrees--root-of tree) (or scope 'merge)))

(defun qwen-companion-worktrees--read-scope (tree)
  "Read with completion a scope to compare the worktree TREE with."
  (let ((scopes (append
                 (mapcar (lambda (other)
                           (let ((path (qwen-companion-worktree-path other)))
                             (list (file-name-nondirectory path) 'tree path)))
                         (reverse (remq tree (seq-remove #'qwen-companion-worktree-gone
                                                         qwen-companion-worktrees--trees))))
                 (unless (qwen-companion-worktrees--main-p tree)
                   '(("where it began" . begun))))))
    (unless scopes
      (user-error "No other worktree"))
    (cdr (assoc (completing-read "Compare with: " scopes nil t nil nil (caar scopes)) scopes))))

(defun qwen-companion-worktrees-remove (tree)
  "End the CLI in TREE, the worktree at point, and remove the worktree.
Ask first, naming the loss.  The branch stays, with its commits."
  (interactive (list (qwen-companion-list-at-point)) qwen-companion-worktrees-mode)
  (let ((path (qwen-companion-worktree-path tree))
        (main (qwen-companion-worktree-path (car qwen-companion-worktrees--trees)))
        (buffer (current-buffer)))
    (cond
     ((qwen-companion-worktrees--main-p tree)
      (user-error "This is the main tree"))
     ((qwen-companion-worktree-locked tree)
      (user-error "It is locked; unlock it first with git worktree unlock"))
     ((not (qwen-companion-worktree-gone tree))
      ;; Its data may be outdated.
      (qwen-companion-worktrees--store
       path (qwen-companion-journal-await
             'journal-worktrees (list :root qwen-companion-worktrees--root :tree path)))
      (setq tree (qwen-companion-worktrees--tree path))))
    (unless (yes-or-no-p (qwen-companion-worktrees--removal-text tree))
      (keyboard-quit))
    (mapc #'qwen-companion-worktrees--end (qwen-companion-worktrees--residents tree))
    ;; The list may have been opened in the removed directory.
    (setq qwen-companion-worktrees--root main
          default-directory (file-name-as-directory main))
    (qwen-companion-terminal-run-git
     main
     (lambda ()
       (qwen-companion-roots-drop path)
       (qwen-companion-buffers-when-live buffer
         (qwen-companion-worktrees--load))
       (message "Removed; %s"
                (if-let* ((branch (qwen-companion-worktree-branch tree)))
                    (format "branch %s stays" (qwen-companion-untrusted-text branch))
                  "it had no branch")))
     "worktree" "remove" "--force" path)))

(defun qwen-companion-worktrees--end (session)
  "End the CLI SESSION, and its terminal if that was started for it."
  (let ((buffer (qwen-companion-terminal-session-buffer session))
        (kill-buffer-query-functions nil))
    (when-let* ((pid (qwen-companion-session-pid session)))
      (signal-process pid 'SIGTERM))
    (when (and buffer (buffer-local-value 'qwen-companion-terminal-directory buffer))
      (kill-buffer buffer))))

(defun qwen-companion-worktrees--removal-text (tree)
  "Return the question whether to remove TREE, naming the loss."
  (cl-flet ((many (count words)
              (and (> count 0) (format words count (if (= count 1) "" "s")))))
    (let* ((path (qwen-companion-worktree-path tree))
           (name (qwen-companion-untrusted-text (file-name-nondirectory path)))
           (unsaved (seq-count (lambda (buffer)
                                 (when-let* (((buffer-modified-p buffer))
                                             (file (buffer-file-name buffer)))
                                   (equal path (qwen-companion-worktrees--around
                                                (file-name-directory file)))))
                               (buffer-list))))
      (if (qwen-companion-worktree-gone tree)
          (format "The directory of %s is gone; forget the worktree? " name)
        (concat
         (mapconcat (lambda (session)
                      (format "End %s there.  " (qwen-companion-untrusted-text
                                                 (qwen-companion-session-client session))))
                    (qwen-companion-worktrees--residents tree) "")
         (format "Remove worktree %s and lose " name)
         (string-join
          (delq nil
                (list (many (qwen-companion-worktree-uncommitted tree)
                            "uncommitted changes in %d file%s")
                      (and (null (qwen-companion-worktree-branch tree))
                           (many (qwen-companion-worktree-ahead tree)
                                 "%d commit%s that may be on no branch"))
                      (many (or (qwen-companion-worktree-inner tree) 0)
                            "%d commit%s of repositories in it that no remote has")
                      (many unsaved "unsaved text in %d buffer%s")
                      "all ignored files"))
          ", ")
         "? ")))))

(defun qwen-companion-worktrees--other-p ()
  "Return non-nil when a worktree other than the main tree is at point."
  (when-let* ((tree (qwen-companion-list-row)))
    (not (qwen-companion-worktrees--main-p tree))))

(qwen-companion-list-define qwen-companion-worktrees-mode "Worktrees"
  "Major mode of the list of a project's worktrees.
Info node `(qwen-companion)Several agents' is about it."
  (:buffer "*qwen-companion worktrees*"
   :thing "worktree"
   :columns [("Worktree" 9 t) ("Branch" 16 t) ("CLI" 10 t) ("State" 9 t)
             ("Files" 5 nil :right-align t) ("Commits" 7 nil)
             ("Conflicts" 9 nil :right-align t) ("Tokens" 6 nil :right-align t)
             ("Turn" 0 nil)]
   :first-line 8
   :cut 1
   :rows (lambda () qwen-companion-worktrees--trees)
   :entry #'qwen-companion-worktrees--entry
   :find #'qwen-companion-worktrees--tree
   :empty (lambda () (or (alist-get nil qwen-companion-worktrees--problems) "..."))
   :load #'qwen-companion-worktrees--load-outdated
   :period qwen-companion-worktrees--period
   :hooks '((qwen-companion-journal-changed-functions . qwen-companion-worktrees--changed)
            (after-save-hook . qwen-companion-worktrees--saved))
   :set-up (lambda () (qwen-companion-journal-watch-while-live 'worktrees)))
  (visit qwen-companion-worktrees-changes "What Agents Have Changed" "changes"
   :if (qwen-companion-list-row))
  (difference qwen-companion-worktrees-diff "Difference to the Main Tree"
   :if (qwen-companion-worktrees--other-p))
  ("m" qwen-companion-worktrees-merge "Merge into the Main Tree" "merge"
   :if (qwen-companion-worktrees--other-p))
  ("M" qwen-companion-worktrees-merge-branch "Merge Its Commits with Git"
   :if (qwen-companion-worktrees--other-p))
  (terminal qwen-companion-worktrees-terminal "Go to Its Terminal"
   :if (qwen-companion-list-row))
  (prompt qwen-companion-worktrees-ask "Write a Prompt"
   :if (qwen-companion-list-row))
  (end qwen-companion-worktrees-remove "End and Remove" "remove"
   :if (qwen-companion-worktrees--other-p)))

;;;###autoload
(defun qwen-companion-worktrees ()
  "List the git worktrees of the project, each with its CLIs and its state.
\\<qwen-companion-worktrees-mode-map>\\[qwen-companion-worktrees-changes] shows the changes of agents, \\[qwen-companion-worktrees-merge] merges them into the main tree, \\[qwen-companion-worktrees-diff]
shows the difference to it, \\[qwen-companion-worktrees-remove] removes the worktree."
  (interactive)
  (unless (eq 'ready (qwen-companion-state))
    (user-error "The companion is not running; M-x qwen-companion-mode starts it"))
  (let ((root (qwen-companion-terminal-here)))
    (qwen-companion-list-open 'qwen-companion-worktrees-mode
                              (lambda ()
                                (unless (equal root qwen-companion-worktrees--root)
                                  (setq qwen-companion-worktrees--root root
                                        qwen-companion-worktrees--trees nil))))))

(provide 'qwen-companion-worktrees)
;;; qwen-companion-worktrees.el ends here
