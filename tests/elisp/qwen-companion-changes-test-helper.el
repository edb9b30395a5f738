;;; qwen-companion-changes-test-helper.el --- A journal for tests  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Stands in for the journal of the Python process, and for its merging: the
;; turns are in a variable, git merges.  What the answers look like is checked
;; by the Python tests and those in tests/e2e.

;;; Code:

(require 'qwen-companion-test-helper)
(require 'qwen-companion-changes)

(defvar qwen-companion-changes-test-turns nil
  "The turns of the journal, newest first, as they are told to Emacs.")

(defvar qwen-companion-changes-test-texts nil
  "Hash table of the texts: (TURN . PATH) to (BEFORE . AFTER), bytes or nil.")

(defvar qwen-companion-changes-test-disk nil
  "Hash table from path to the bytes that were last on disk.")

(defvar qwen-companion-changes-test-origins nil
  "Answers to successive `journal-origins' requests; the last one stays.")

(defvar qwen-companion-changes-test-plan nil
  "The file with the plan of each turn, or nil for none.")

(defvar qwen-companion-changes-test-staged nil
  "Answers to successive `journal-stage' requests; a patch without them.")

(defvar qwen-companion-changes-test-busy nil
  "Answers to successive `journal-busy' requests.")

(defvar qwen-companion-changes-test-hold nil
  "Non-nil to keep answers until `qwen-companion-changes-test-release'.")

(defvar qwen-companion-changes-test--held nil)

(defmacro qwen-companion-changes-test--with-journal (&rest body)
  "Run BODY, which may go to other buffers, with a journal without turns."
  (declare (indent 0) (debug t))
  `(let ((qwen-companion-changes-test-turns nil)
         (qwen-companion-changes-test-texts (make-hash-table :test #'equal))
         (qwen-companion-changes-test-disk (make-hash-table :test #'equal))
         (qwen-companion-changes-test-busy nil)
         (qwen-companion-changes-test-hold nil)
         (qwen-companion-changes-test--held nil))
     (save-window-excursion
       (delete-other-windows)
       (switch-to-buffer (get-buffer-create "*elsewhere*"))
       (unwind-protect
           (progn ,@body)
         (qwen-companion-changes-close)))))

(defmacro qwen-companion-changes-test-with (files &rest body)
  "Run BODY with FILES, a journal without turns and an orderly frame."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (qwen-companion-test-with-backend
       (let ((qwen-companion-backend--state 'ready)
             (inhibit-message t))
         (cl-letf (((symbol-function 'qwen-companion-backend-call)
                    #'qwen-companion-changes-test--call)
                   ((symbol-function 'qwen-companion-roots-published)
                    (lambda () (list (directory-file-name directory))))
                   ((symbol-function 'qwen-companion-merge-compare)
                    #'qwen-companion-test-compare-now)
                   ((symbol-function 'qwen-companion-merge-texts) #'qwen-companion-test-merge-now))
           (unwind-protect
               (qwen-companion-changes-test--with-journal
                 (qwen-companion-journal-enable)
                 ,@body)
             (qwen-companion-journal-disable)))))))

(defmacro qwen-companion-changes-test-with-process (&rest body)
  "Run BODY with a Python process that compares and merges, and a CLI connected.
The journal is that of the tests, without turns."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-process
     (let ((qwen-companion-test-calls nil)
           (real (symbol-function 'qwen-companion-backend-call)))
       (qwen-companion-mode 1)
       (qwen-companion-test-wait-for (eq 'ready (qwen-companion-state)))
       (cl-letf (((symbol-function 'qwen-companion-backend-call)
                  (lambda (method payload)
                    (if (string-prefix-p "journal-" (symbol-name method))
                        (qwen-companion-changes-test--call method payload)
                      (funcall real method payload))))
                 ((symbol-function 'qwen-companion-backend-sessions)
                  (lambda () '((:id "s" :client "qwen"))))
                 ((symbol-function 'qwen-companion-roots-published)
                  (lambda () (list (directory-file-name directory)))))
         (qwen-companion-follow-update)
         (qwen-companion-changes-test--with-journal ,@body)))))

(defun qwen-companion-changes-test-bytes (path)
  "Return the bytes of the file PATH, nil without one."
  (when (file-regular-p path)
    (qwen-companion-test-file-bytes path)))

(defun qwen-companion-changes-test-write (path bytes)
  "Put BYTES into the file PATH; delete it if they are nil."
  (if (null bytes)
      (delete-file path)
    (make-directory (file-name-directory (expand-file-name path)) t)
    (let ((coding-system-for-write 'no-conversion))
      (write-region bytes nil path nil 'silent))))

(defun qwen-companion-changes-test--spool (list)
  "Return the keys of an answer with LIST of texts; put their bytes into a file."
  (let ((file (make-temp-file (expand-file-name "bytes-" (qwen-companion-backend-spool))))
        (all ""))
    (list :texts (mapcar (lambda (texts)
                           (dolist (key '(:before :after) texts)
                             (when-let* ((bytes (plist-get texts key)))
                               (let ((start (length all)))
                                 (setq all (concat all bytes)
                                       texts (plist-put texts key (list start (length all))))))))
                         list)
          :texts-file (progn (qwen-companion-changes-test-write file all) file))))

(defun qwen-companion-changes-test-turn (id changes &rest more)
  "Add a turn ID in which an agent writes CHANGES: (NAME TEXT) or (NAME nil).
A text may be followed by further keys of the file.  MORE are keys of the
turn.  The files are written and Emacs is told."
  (let ((root (directory-file-name default-directory))
        files)
    (pcase-dolist (`(,name ,text . ,keys) changes)
      (let* ((path (expand-file-name name))
             (from (plist-get keys :from))
             (before (qwen-companion-changes-test-bytes
                      (if from (expand-file-name from) path)))
             (after (and text (encode-coding-string text 'utf-8-unix))))
        (when from
          (delete-file from)
          (setq keys (plist-put (copy-sequence keys) :from (expand-file-name from))))
        (qwen-companion-changes-test-write path after)
        (puthash (cons id path) (cons before after) qwen-companion-changes-test-texts)
        (puthash path after qwen-companion-changes-test-disk)
        (push (append keys
                      (list :path path
                            :kind (cond (from 'renamed) ((null before) 'added)
                                        ((null after) 'deleted) (t 'modified))
                            :by '(("edit" nil)))
                      (qwen-companion-changes-test--counts before after))
              files)))
    (qwen-companion-changes-test-add
     (append more
             (list :id id :root root :session "conversation" :client "Qwen Code 0.24.4"
                   :who 'agent :source 'hooks :prompt (concat "Prompt of " id)
                   :start (* 1000.0 (+ (float-time) (length qwen-companion-changes-test-turns)))
                   :end 1 :files (nreverse files))))))

(defun qwen-companion-changes-test--counts (before after)
  "Return the keys for how many lines of BEFORE are not in AFTER and vice versa."
  (cl-flet ((count (lines others)
                   (let ((known (make-hash-table :test #'equal)))
                     (dolist (line (split-string (or others "") "\n" t))
                       (puthash line t known))
                     (cl-count-if-not (lambda (line) (gethash line known))
                                      (split-string (or lines "") "\n" t)))))
    (list :added (count after before) :deleted (count before after))))

(defun qwen-companion-changes-test-add (turn)
  "Add TURN, or replace the turn with its id, and tell Emacs."
  (setq qwen-companion-changes-test-turns
        (cons turn (cl-remove (plist-get turn :id) qwen-companion-changes-test-turns
                              :key (lambda (turn) (plist-get turn :id)) :test #'equal)))
  (qwen-companion-journal-on-turns (list :turns (list turn))))

(defun qwen-companion-changes-test--call (method payload)
  "Answer the call of METHOD with PAYLOAD like the Python process."
  (push (cons method payload) qwen-companion-test-calls)
  (if (and qwen-companion-changes-test-hold (plist-get payload :id))
      (push (cons method payload) qwen-companion-changes-test--held)
    (qwen-companion-changes-test--answer method payload))
  t)

(defun qwen-companion-changes-test-release ()
  "Answer the requests that were held, and hold no more of them."
  (setq qwen-companion-changes-test-hold nil)
  (pcase-dolist (`(,method . ,payload) (reverse (cl-shiftf qwen-companion-changes-test--held nil)))
    (qwen-companion-changes-test--answer method payload)))

(defun qwen-companion-changes-test--answer (method payload)
  "Answer the call of METHOD with PAYLOAD."
  (let ((path (plist-get payload :path))
        (turn (plist-get payload :turn)))
    (cl-flet ((reply (keys)
                     (qwen-companion-journal-on-reply (cons :id (cons (plist-get payload :id) keys)))))
      (pcase method
        ('journal-origins
         (reply (if (cdr qwen-companion-changes-test-origins)
                    (pop qwen-companion-changes-test-origins)
                  (car qwen-companion-changes-test-origins))))
        ('journal-prompts
         (reply (list :turns (mapcar (lambda (turn)
                                       (list :turn turn :session "s" :client "Qwen Code 0.24.4"
                                             :start 0 :models '("qwen3-coder-plus")
                                             :plan qwen-companion-changes-test-plan))
                                     (plist-get payload :turns))
                      :prompts (list :text (mapconcat (lambda (_) "Make it\nso")
                                                      (plist-get payload :turns) "\0")))))
        ('journal-stage
         (reply (or (pop qwen-companion-changes-test-staged)
                    (qwen-companion-changes-test--spool
                     (list (list :path "" :after "the patch\n"))))))
        ('journal-watch
         (when (plist-get payload :on)
           (qwen-companion-journal-on-turns
            (list :reset t :turns qwen-companion-changes-test-turns))))
        ('journal-texts
         (reply (qwen-companion-changes-test--spool
                 (mapcar (lambda (file)
                           (let ((path (plist-get file :path)))
                             (cons :path
                                   (cons path (qwen-companion-changes-test--texts
                                               path turn (plist-get payload :scope))))))
                         (plist-get payload :files)))))
        ('journal-files
         (reply (list :files (cl-remove-duplicates
                              (cl-loop for turn in (reverse qwen-companion-changes-test-turns)
                                       append (plist-get turn :files))
                              :key (lambda (file) (plist-get file :path)) :test #'equal))))
        ('journal-prune
         (let ((gone (plist-get payload :turns)))
           (setq qwen-companion-changes-test-turns
                 (cl-remove-if (lambda (turn) (member (plist-get turn :id) gone))
                               qwen-companion-changes-test-turns))
           (qwen-companion-journal-on-turns (list :gone gone))
           (reply (list :sizes (mapcar (lambda (turn) (list (plist-get turn :id) 2048))
                                       (reverse qwen-companion-changes-test-turns))))))
        ('journal-busy (reply (list :busy (pop qwen-companion-changes-test-busy))))
        ('journal-spans (reply (list :spans nil)))
        ('journal-merge
         ;; The main tree is the directory around the worktree.
         (reply (list :root (directory-file-name
                             (file-name-directory (plist-get payload :root))))))
        ('journal-seen
         (let ((known (cl-find turn qwen-companion-changes-test-turns
                               :key (lambda (turn) (plist-get turn :id)) :test #'equal)))
           (qwen-companion-changes-test-add
            (plist-put
             (copy-sequence known) :files
             (mapcar
              (lambda (file)
                (cond
                 ((and path (not (equal path (plist-get file :path)))) file)
                 ((plist-get payload :hunks)
                  (plist-put (copy-sequence file) :seen-hunks
                             (append (plist-get payload :hunks) (plist-get file :seen-hunks))))
                 (t (plist-put (copy-sequence file) :seen (plist-get payload :seen)))))
              (plist-get known :files))))))
        ('journal-wrote (qwen-companion-changes-test--wrote payload))))))

(defun qwen-companion-changes-test--texts (path turn scope)
  "Return the keys of the answer about PATH in TURN or SCOPE."
  (let* ((ids (if (eq scope 'turn)
                  (list turn)
                (cl-loop for turn in qwen-companion-changes-test-turns
                         for id = (plist-get turn :id)
                         when (gethash (cons id path) qwen-companion-changes-test-texts)
                         collect id)))
         (newest (gethash (cons (car ids) path) qwen-companion-changes-test-texts))
         (oldest (gethash (cons (car (last ids)) path) qwen-companion-changes-test-texts))
         (file (cl-loop for turn in qwen-companion-changes-test-turns
                        thereis (and (equal (plist-get turn :id) (car ids))
                                     (cl-find path (plist-get turn :files)
                                              :key (lambda (file) (plist-get file :path))
                                              :test #'equal)))))
    (if (null newest)
        (list :error "that is not in the journal any more")
      (list :before (car oldest)
            :after (cdr newest)
            :before-mode (and (car oldest) #o644)
            :after-mode (and (cdr newest) #o644)
            :apart (plist-get file :apart)
            :from (plist-get file :from)))))

(defun qwen-companion-changes-test--wrote (payload)
  "Record the write that PAYLOAD reports; an undo becomes a turn."
  (let ((undo-of (if (eq 'bring-back (plist-get payload :action))
                     (cl-loop for turn in qwen-companion-changes-test-turns
                              when (equal (plist-get turn :undone-of) (plist-get payload :turn))
                              return (plist-get turn :id))
                   (plist-get payload :turn)))
        (id (format "undo-%d" (length qwen-companion-changes-test-turns)))
        files)
    (dolist (path (plist-get payload :paths))
      (let ((before (gethash path qwen-companion-changes-test-disk))
            (after (qwen-companion-changes-test-bytes path)))
        (puthash path after qwen-companion-changes-test-disk)
        (when undo-of
          (puthash (cons id path) (cons before after) qwen-companion-changes-test-texts)
          (push (append (list :path path
                              :kind (cond ((null before) 'added) ((null after) 'deleted)
                                          (t 'modified))
                              :seen t)
                        (qwen-companion-changes-test--counts before after))
                files))))
    (when undo-of
      (qwen-companion-changes-test-add
       (list :id id :root (directory-file-name default-directory) :who 'user
             :source 'undo :prompt (plist-get payload :label) :undone-of undo-of
             :start (* 1000.0 (+ 100 (float-time) (length qwen-companion-changes-test-turns)))
             :end 1 :files files)))))

;;; Looking and pressing

(defun qwen-companion-changes-test-open ()
  "Go to the buffer of changes."
  (qwen-companion-changes)
  (set-buffer (window-buffer)))

(defmacro qwen-companion-changes-test-with-turn (files changes &rest body)
  "Run BODY where the turn \"one\" has made CHANGES in FILES, and all are shown."
  (declare (indent 2) (debug t))
  `(qwen-companion-changes-test-with ,files
     (qwen-companion-changes-test-turn "one" ,changes)
     (qwen-companion-changes-test-open)
     ,@body))

(defun qwen-companion-changes-test-settle ()
  "Let the buffer of changes show the latest answers."
  (with-current-buffer qwen-companion-changes-items-buffer-name
    (unless qwen-companion-changes-test-hold
      (qwen-companion-changes-items-update)
      (qwen-companion-test-wait-for
       (cl-notany (lambda (view) (eq 'loading (qwen-companion-changes-file-state view)))
                  (hash-table-values qwen-companion-changes-items-views))))
    (qwen-companion-timers--stop)
    (qwen-companion-changes-items-update)))

(defun qwen-companion-changes-test-goto (text)
  "Go to the beginning of the line with TEXT in the selected window."
  (set-buffer (window-buffer))
  (goto-char (point-min))
  (unless (search-forward text nil t)
    (ert-fail (list "Not shown:" text (buffer-string))))
  (forward-line 0)
  (set-window-point nil (point)))

(defun qwen-companion-changes-test-press-at (text &rest keys)
  "Go to the line with TEXT and press KEYS."
  (qwen-companion-changes-test-goto text)
  (apply #'qwen-companion-test-press keys))

(defun qwen-companion-changes-test-unfold (file)
  "Unfold FILE and go to its first hunk."
  (qwen-companion-changes-test-goto file)
  (qwen-companion-test-press "TAB")
  (qwen-companion-changes-test-settle)
  (qwen-companion-hunks-view-goto-hunk (point) nil)
  (set-window-point nil (point)))

(defun qwen-companion-changes-test-text ()
  "Return the text of the buffer of changes."
  (with-current-buffer qwen-companion-changes-items-buffer-name
    (buffer-substring-no-properties (point-min) (point-max))))

(defun qwen-companion-changes-test-shows (&rest strings)
  "Settle, and check that the buffer of changes shows STRINGS."
  (qwen-companion-changes-test-settle)
  (let ((text (qwen-companion-changes-test-text)))
    (dolist (string strings)
      (should (string-search string text)))))

(defun qwen-companion-changes-test-told (index texts)
  "Have the turn INDEX, 0 for the newest, told again with TEXTS.
These are lists of (NAME BEFORE AFTER . KEYS), the files it has then."
  (let ((turn (copy-sequence (nth index qwen-companion-changes-test-turns))))
    (qwen-companion-changes-test-add
     (plist-put turn :files
                (mapcar (pcase-lambda (`(,name ,before ,after . ,keys))
                          (puthash (cons (plist-get turn :id) (expand-file-name name))
                                   (cons before after) qwen-companion-changes-test-texts)
                          (append keys (list :path (expand-file-name name) :kind 'modified
                                             :added 1 :deleted 1)))
                        texts)))))

(defun qwen-companion-test-born-after-p (directory time)
  "Say whether DIRECTORY was made after TIME in ms; nil where that is not known."
  (qwen-companion-undo--born-after (list directory) time))

(provide 'qwen-companion-changes-test-helper)
;;; qwen-companion-changes-test-helper.el ends here
